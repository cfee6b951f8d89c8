"""What every policy engine owes, asked of each of them."""

import asyncio
import functools
import itertools
import math
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from transforms.rollout.engines import make_service
from transforms.rollout.policy import Completion, EngineError, EngineService, EngineSpec, PolicyEngine, Sampling

CHAT = [{"role": "user", "content": "Write a Python function that returns the sum of a list."}]
GREEDY = Sampling(temperature=0, max_tokens=24, stop=())
SAMPLED = Sampling(temperature=1.0, max_tokens=24, stop=())
ENGINES = ["transformers", pytest.param("vllm", marks=[pytest.mark.vllm, pytest.mark.slow])]
TOLERANCE = 2e-4  # nats; both compute in float32

versions = itertools.count()


@pytest.fixture(scope="module", params=ENGINES)
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineService]:
    spec = EngineSpec(kind=request.param, dtype="float32", max_model_len=128, concurrent=64)
    with make_service(spec, log=tmp_path_factory.mktemp("log") / "engine.log") as running:
        yield running


@pytest.fixture(scope="module")
def engine(service: EngineService, checkpoint: Path) -> PolicyEngine:
    return service.serve(checkpoint, next(versions))


def ask(engine: PolicyEngine, sampling: Sampling, *, n: int = 1, seed: int = 7) -> list[Completion]:
    return asyncio.run(engine.sample(CHAT, n=n, sampling=sampling, seed=seed))


@functools.cache
def plain_model(checkpoint: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)


def distributions(checkpoint: Path, completion: Completion, temperature: float) -> torch.Tensor:
    """Log-probabilities [tokens, vocabulary] of a plain forward pass, without cache or batch."""
    model = plain_model(checkpoint)
    ids = torch.tensor([completion.prompt_token_ids + completion.token_ids])
    with torch.no_grad():
        logits = model(ids).logits[0, len(completion.prompt_token_ids) - 1 : -1]
    return (logits / temperature).log_softmax(-1)


def test_it_gives_n_completions_with_a_log_probability_for_every_token(engine: PolicyEngine):
    completions = ask(engine, SAMPLED, n=8)
    assert len(completions) == 8
    for completion in completions:
        assert 1 <= len(completion.token_ids) <= 24
        assert len(completion.logprobs) == len(completion.token_ids)
        assert all(math.isfinite(logprob) and logprob <= 0 for logprob in completion.logprobs)
    assert len({completion.token_ids for completion in completions}) > 1


def test_the_prompt_is_the_chat_template_of_the_checkpoint(engine: PolicyEngine, checkpoint: Path):
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    text = f"<|im_start|>user\n{CHAT[0]['content']}<|im_end|>\n<|im_start|>assistant\n"
    assert list(ask(engine, GREEDY)[0].prompt_token_ids) == tokenizer.encode(text).ids


def test_greedy_takes_the_likeliest_token_and_repeats_itself(engine: PolicyEngine, checkpoint: Path):
    completions = ask(engine, GREEDY, n=3) + ask(engine, GREEDY, seed=8)
    assert len({(completion.token_ids, completion.text) for completion in completions}) == 1
    expected = distributions(checkpoint, completions[0], 1.0).argmax(-1)
    assert list(completions[0].token_ids) == expected.tolist()


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
def test_log_probabilities_are_those_of_the_distribution_sampled_from(
    engine: PolicyEngine, checkpoint: Path, temperature: float
):
    completions = ask(engine, Sampling(temperature=temperature, max_tokens=80, stop=()), n=16)
    if temperature > 0:  # some end before others: what is left of the batch must keep its own history
        assert len({len(completion.token_ids) for completion in completions}) > 1
    for completion in completions:
        all_logprobs = distributions(checkpoint, completion, temperature or 1.0)
        expected = [float(row[token]) for row, token in zip(all_logprobs, completion.token_ids, strict=True)]
        assert completion.logprobs == pytest.approx(expected, abs=TOLERANCE)


def test_top_p_cuts_the_tail_and_renormalises(engine: PolicyEngine, checkpoint: Path):
    for completion in ask(engine, Sampling(temperature=1.0, top_p=0.5, max_tokens=12, stop=()), n=8):
        rows = distributions(checkpoint, completion, 1.0).exp().tolist()
        for row, token, logprob in zip(rows, completion.token_ids, completion.logprobs, strict=True):
            nucleus, mass = [], 0.0
            for candidate in sorted(range(len(row)), key=lambda i: -row[i]):
                if mass >= 0.5:
                    break
                nucleus.append(candidate)
                mass += row[candidate]
            assert token in nucleus
            assert logprob == pytest.approx(math.log(row[token] / mass), abs=TOLERANCE)


def test_it_samples_what_its_log_probabilities_say(engine: PolicyEngine, checkpoint: Path):
    first = [completion.logprobs[0] for completion in ask(engine, Sampling(max_tokens=1, stop=()), n=400)]
    row = distributions(checkpoint, ask(engine, GREEDY)[0], 1.0)[0]
    mean = float((row.exp() * row).sum())  # expected log-probability: minus the entropy
    deviation = math.sqrt(float((row.exp() * (row - mean) ** 2).sum()) / len(first))
    assert sum(first) / len(first) == pytest.approx(mean, abs=5 * deviation)
    # Control: a sampler that ignored the probabilities would be far off.
    assert abs(float(row.mean()) - mean) > 10 * deviation


def test_a_completion_cut_at_max_tokens_says_so(engine: PolicyEngine):
    completion = ask(engine, Sampling(temperature=0, max_tokens=5, stop=()))[0]
    assert (len(completion.token_ids), completion.finish_reason) == (5, "length")


def test_a_completion_cut_by_the_context_says_so(engine: PolicyEngine):
    cut = [c for c in ask(engine, Sampling(max_tokens=1000, stop=()), n=32) if c.finish_reason == "length"]
    assert cut
    for completion in cut:
        assert len(completion.prompt_token_ids) + len(completion.token_ids) == 128


def test_a_stop_string_ends_the_text_and_stays_in_it(engine: PolicyEngine, checkpoint: Path):
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    whole = ask(engine, GREEDY)[0]
    pieces = [tokenizer.decode([token]) for token in whole.token_ids]
    # Two characters of which the second begins a longer token: the stop ends inside a token.
    index = next(i for i, piece in enumerate(pieces) if i >= 2 and len(piece) >= 2)
    stop = "".join(pieces[:index])[-1] + pieces[index][0]
    end = whole.text.index(stop) + 2
    stopped = ask(engine, GREEDY.model_copy(update={"stop": ("never this", stop)}))[0]
    assert stopped.text == whole.text[:end]
    assert stopped.finish_reason == "stop"
    # The token that holds the stop is kept whole, with its log-probability.
    assert stopped.token_ids == whole.token_ids[: len(stopped.token_ids)]
    assert len(stopped.logprobs) == len(stopped.token_ids)
    assert stop in tokenizer.decode(list(stopped.token_ids))
    assert stop not in tokenizer.decode(list(stopped.token_ids[:-1]))


def test_the_end_token_is_part_of_the_completion(engine: PolicyEngine, checkpoint: Path):
    end = Tokenizer.from_file(str(checkpoint / "tokenizer.json")).token_to_id("<|im_end|>")
    ended = [c for c in ask(engine, Sampling(temperature=2, max_tokens=80, stop=()), n=64) if c.finish_reason == "stop"]
    assert ended
    for completion in ended:
        assert completion.token_ids.index(end) == len(completion.token_ids) - 1
        assert "<|im_end|>" not in completion.text
        assert len(completion.logprobs) == len(completion.token_ids)


def test_a_handle_travels(engine: PolicyEngine):
    assert ask(pickle.loads(pickle.dumps(engine)), GREEDY) == ask(engine, GREEDY)


def test_many_groups_at_once_get_the_answers_they_get_alone(engine: PolicyEngine):
    async def together() -> list[list[Completion]]:
        return await asyncio.gather(*(engine.sample(CHAT, n=2, sampling=GREEDY, seed=i) for i in range(6)))

    alone = ask(engine, GREEDY, n=2)
    for group in asyncio.run(together()):
        assert [completion.token_ids for completion in group] == [completion.token_ids for completion in alone]


def test_a_seed_repeats_the_draw_where_the_engine_says_so(engine: PolicyEngine):
    draws = [ask(engine, SAMPLED, n=4, seed=seed) for seed in (7, 7, 8)]
    if draws[0][0].seeded:
        assert draws[0] == draws[1]
        assert draws[0] != draws[2]
    else:
        assert draws[0] != draws[1]


def test_a_prompt_without_room_is_an_engine_error(engine: PolicyEngine):
    long_chat = [{"role": "user", "content": "sum " * 200}]
    with pytest.raises(EngineError) as error:
        asyncio.run(engine.sample(long_chat, n=1, sampling=GREEDY, seed=0))
    assert error.value.evidence


def test_new_weights_change_the_answers_and_the_old_ones_bring_them_back(
    service: EngineService, checkpoint: Path, other_checkpoint: Path
):
    """Last: it leaves the handle of the other tests behind."""
    before = ask(service.serve(checkpoint, next(versions)), GREEDY)
    other = ask(service.serve(other_checkpoint, next(versions)), GREEDY)
    again = ask(service.serve(checkpoint, next(versions)), GREEDY)
    assert other[0].prompt_token_ids == before[0].prompt_token_ids
    assert other[0].token_ids != before[0].token_ids
    assert other[0].logprobs == pytest.approx(
        distributions(other_checkpoint, other[0], 1.0).max(-1).values.tolist(), abs=TOLERANCE
    )
    assert again == before


def test_a_folder_without_a_model_is_an_engine_error(service: EngineService, tmp_path: Path):
    with pytest.raises(EngineError, match=str(tmp_path)):
        service.serve(tmp_path, next(versions))
