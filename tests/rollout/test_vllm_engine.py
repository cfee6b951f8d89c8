"""What the vLLM engine makes of an HTTP answer, said by a real server that this test scripts."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast

import pytest

from transforms.rollout.policy import EngineError, EngineLost, Sampling
from transforms.rollout.vllm_engine import VllmEngine

CHAT = [{"role": "user", "content": "hi"}]


def choice(**overrides: object) -> dict[str, object]:
    whole: dict[str, object] = {
        "message": {"content": "ab"},
        "token_ids": [5, 6],
        "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -0.25}]},
        "finish_reason": "stop",
    }
    return whole | overrides


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[dict] = []
        self.choices = [choice()]
        self.version = "3"
        self.status = 200
        self.dropped = 0
        self.hang = threading.Event()
        self.hang.set()


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        script = cast(Server, self.server)
        script.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        script.hang.wait(10)
        if script.dropped > 0:
            script.dropped -= 1
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.answer({"prompt_token_ids": [1, 2, 3], "choices": script.choices}, script.status)

    def do_GET(self) -> None:
        self.answer({"weight_version": cast(Server, self.server).version}, 200)

    def answer(self, body: dict, status: int) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.hang.set()
        running.shutdown()


def ask(server: Server, tmp_path: Path, *, seeds: bool = False, n: int = 1, timeout_s: float = 5, **sampling: float):
    (tmp_path / "engine.log").write_text("the last words of the engine\n")
    engine = VllmEngine(
        url=f"http://127.0.0.1:{server.server_address[1]}", model="policy-5eed", policy_version=3, seeds=seeds,
        max_model_len=64, timeout_s=timeout_s, log=tmp_path / "engine.log",
    )  # fmt: skip
    settings = Sampling.model_validate({"stop": ("\n```",), **sampling})
    return asyncio.run(engine.sample(CHAT, n=n, sampling=settings, seed=41))


def test_an_answer_is_taken_as_it_was_given(server: Server, tmp_path: Path):
    (completion,) = ask(server, tmp_path)
    assert completion.prompt_token_ids == (1, 2, 3)
    assert completion.token_ids == (5, 6)
    assert completion.logprobs == (-0.5, -0.25)
    assert (completion.text, completion.finish_reason, completion.seeded) == ("ab", "stop", False)


def test_no_seed_reaches_an_engine_that_a_seed_would_kill(server: Server, tmp_path: Path):
    ask(server, tmp_path)
    assert "seed" not in server.requests[0]
    assert ask(server, tmp_path, seeds=True)[0].seeded
    assert server.requests[1]["seed"] == 41


def test_a_group_is_one_request_and_greedy_ones_are_asked_once(server: Server, tmp_path: Path):
    server.choices = [choice()] * 4
    assert len(ask(server, tmp_path, n=4)) == 4
    server.choices = [choice()]
    assert len(ask(server, tmp_path, n=4, temperature=0)) == 4
    assert [request["n"] for request in server.requests] == [4, 1]


def test_an_empty_completion_is_one(server: Server, tmp_path: Path):
    server.choices = [choice(message={"content": None}, token_ids=[2], logprobs={"content": [{"logprob": -1.0}]})]
    (completion,) = ask(server, tmp_path)
    assert (completion.text, completion.token_ids) == ("", (2,))


@pytest.mark.parametrize(
    "broken",
    [
        choice(token_ids=[5]),
        choice(logprobs={"content": None}),
        choice(finish_reason="abort"),
        choice(token_ids=None),
        {"message": {"content": "ab"}},
    ],
)
def test_an_answer_that_does_not_add_up_is_an_engine_error(server: Server, tmp_path: Path, broken: dict):
    server.choices = [broken]
    with pytest.raises(EngineError) as error:
        ask(server, tmp_path)
    assert error.value.evidence


def test_too_few_completions_are_an_engine_error(server: Server, tmp_path: Path):
    with pytest.raises(EngineError, match="1 completions of 2"):
        ask(server, tmp_path, n=2)


def test_a_handle_of_another_policy_version_is_refused(server: Server, tmp_path: Path):
    server.version = "4"
    with pytest.raises(EngineError, match="policy version 4 now, this handle is for 3"):
        ask(server, tmp_path)


def test_a_server_of_another_run_is_asked_for_our_model_and_its_refusal_means_that_ours_is_gone(
    server: Server, tmp_path: Path
):
    server.status = 404
    with pytest.raises(EngineLost, match=r"another server answers at .*: it has no policy-5eed"):
        ask(server, tmp_path)
    assert [request["model"] for request in server.requests] == ["policy-5eed"]


def test_a_refusal_is_not_tried_again(server: Server, tmp_path: Path):
    server.status = 500
    with pytest.raises(EngineError, match="HTTP 500") as error:
        ask(server, tmp_path)
    assert not isinstance(error.value, EngineLost)
    assert len(server.requests) == 1


def test_a_lost_connection_is_tried_three_times(server: Server, tmp_path: Path):
    server.dropped = 2
    assert len(ask(server, tmp_path)) == 1
    assert len(server.requests) == 3
    server.dropped = 3
    with pytest.raises(EngineError, match="in 3 tries") as error:
        ask(server, tmp_path)
    assert "the last words of the engine" in error.value.evidence
    assert len(server.requests) == 6


def test_silence_past_the_limit_is_an_engine_error(server: Server, tmp_path: Path):
    server.hang.clear()
    with pytest.raises(EngineError, match="request_timeout_s = 1 s"):
        ask(server, tmp_path, timeout_s=1)
    assert len(server.requests) == 1  # asking again would add to the load that made it slow
