"""Every table of the lake: one Arrow schema each, with a description and a unit on every field."""

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", tz="UTC")


def field(name: str, kind: pa.DataType, description: str, unit: str = "", *, nullable: bool = True) -> pa.Field:
    """A field that says what it holds; `unit` is empty where there is none."""
    return pa.field(name, kind, nullable=nullable, metadata={"description": description, "unit": unit})


_MESSAGE = pa.struct(
    [
        field("role", pa.string(), "who speaks: system, user or assistant"),
        field("content", pa.string(), "what is said"),
    ]
)
_TURN = pa.struct(
    [
        field("prompt_token_ids", pa.list_(pa.int32()), "tokens the engine was given, as it encoded them"),
        field("token_ids", pa.list_(pa.int32()), "tokens the engine sampled"),
        field("logprobs", pa.list_(pa.float32()), "sampler log-probability of each sampled token", "nats"),
        field("loss_mask", pa.list_(pa.bool_()), "whether a sampled token may be trained on"),
        field("finish_reason", pa.string(), "stop, or length when cut at max_tokens"),
    ]
)
_STEP = pa.struct(
    [
        field("kind", pa.string(), "rollout (the policy acts) or execute (the program runs)"),
        field("state", pa.string(), "what the step started from, in short"),
        field("action", pa.string(), "what was done: the completion, or the program that ran"),
        field("observation", pa.string(), "what came back, bounded in length"),
        field(
            "workspace_digest",
            pa.string(),
            "SHA-256 of the archive of the files the step left, in hex: `headrace files get` gives it; null when none is kept",
        ),
        field(
            "output_digest",
            pa.string(),
            "SHA-256 of all that its processes printed, in hex: `headrace files get` gives it; null when none is kept",
        ),
        field("wall_s", pa.float64(), "time taken, on the host's clock", "seconds"),
        field("cpu_s", pa.float64(), "processor time used, measured from the host", "seconds"),
        field("peak_memory_bytes", pa.int64(), "most memory held at once, measured from the host", "bytes"),
        field("started_at", TIMESTAMP, "when the step began", "UTC microseconds"),
        field("ended_at", TIMESTAMP, "when the step ended", "UTC microseconds"),
    ]
)
_TEST = pa.struct(
    [
        field("name", pa.string(), "name of the case"),
        field("tier", pa.string(), "visible, hidden or integration"),
        field("outcome", pa.string(), "outcome of this case alone"),
        field("message", pa.string(), "what went wrong, bounded in length"),
        field("duration_s", pa.float64(), "time the case took, on the host's clock", "seconds"),
        field("milestone", pa.string(), "part of the task that the case belongs to"),
        field("got", pa.string(), "what the program gave instead, as text, bounded in length"),
        field("expected_type", pa.string(), "type of what was expected where the value was wrong"),
        field("location", pa.string(), "where in the program it went wrong, as the program's process told it"),
    ]
)
_MEASURED = pa.struct(
    [
        field("latency_s", pa.float64(), "CPU time of a run on the performance input with the median ratio", "seconds"),
        field("reference_latency_s", pa.float64(), "the gold's, on the same input", "seconds"),
        field("peak_memory_bytes", pa.int64(), "median over these runs of the most memory the sandbox held", "bytes"),
        field("reference_peak_memory_bytes", pa.int64(), "the gold's", "bytes"),
        field("memory_growth_bytes", pa.float64(), "by how much one more call in the same process raises the sandbox's peak", "bytes per call"),
        field("coverage", pa.float64(), "share of the program's lines that the cases ran, as the program's own process told it: a correct program can forge it", "0..1"),
        field("problem", pa.string(), "components for which the program gave no number, and why: they are 0"),
    ]
)  # fmt: skip
_COMPONENT = pa.struct(
    [field("name", pa.string(), "name of the reward component"), field("value", pa.float64(), "its value", "0..1")]
)

TRAJECTORIES = pa.schema(
    [
        # Readers skip files by the statistics of the first 32 columns only: what is often asked for stands among them.
        field("trajectory_id", pa.string(), "names this attempt of the episode; unique", nullable=False),
        field("episode_id", pa.string(), "names the episode; the same over its attempts", nullable=False),
        field("group_id", pa.string(), "names the group that advantages are relative to", nullable=False),
        field("run_id", pa.string(), "the run this belongs to", nullable=False),
        field("cycle", pa.int32(), "cycle of the run; 0 is the evaluation before training", "cycles", nullable=False),
        field("chunk", pa.int32(), "chunk of the run whose commit holds this row", "chunks", nullable=False),
        field("purpose", pa.string(), "train, eval_greedy or eval_sampled", nullable=False),
        field("sample", pa.int32(), "place in the group, from 0", "samples", nullable=False),
        field("attempt", pa.int32(), "try of the episode, from 1; more than one after an infra failure", "tries", nullable=False),
        field("final", pa.bool_(), "whether this is the episode's last attempt: the one that counts", nullable=False),
        field("task_id", pa.string(), "the task", nullable=False),
        field("task_hash", pa.string(), "SHA-256 of the task's content, in hex", nullable=False),
        field("policy_version", pa.int32(), "version of the policy that answered; 0 is the base policy", "versions", nullable=False),
        field("engine", pa.string(), "engine that sampled", nullable=False),
        field("temperature", pa.float64(), "sampling temperature; 0 is greedy", nullable=False),
        field("top_p", pa.float64(), "nucleus mass", "0..1", nullable=False),
        field("max_tokens", pa.int32(), "most tokens a completion may have", "tokens", nullable=False),
        field("seed", pa.int64(), "seed the engine was offered", nullable=False),
        field("seeded", pa.bool_(), "whether the engine used the seed, so that the draw can be repeated"),
        field("messages", pa.list_(_MESSAGE), "the chat, the policy's answer last"),
        field("turns", pa.list_(_TURN), "what the engine was given and what it sampled, turn by turn"),
        field("finish_reason", pa.string(), "finish reason of the last turn"),
        field("prompt_tokens", pa.int32(), "tokens given, all turns", "tokens"),
        field("completion_tokens", pa.int32(), "tokens sampled, all turns", "tokens"),
        field("completion_hash", pa.string(), "SHA-256 of the last answer's text, in hex"),
        field("program", pa.string(), "source taken from the answer; null when there is none"),
        field("steps", pa.list_(_STEP), "what happened, in order"),
        field("tests", pa.list_(_TEST), "what each case of the task came to"),
        field("outcome", pa.string(), "how the attempt ended", nullable=False),
        field("outcome_class", pa.string(), "whose fault that is: policy, infra, grader or task", nullable=False),
        field("reward", pa.float64(), "the reward; null unless outcome_class is policy", "0..1"),
        field("reward_components", pa.list_(_COMPONENT), "what the reward was made of"),
        field("integrity", pa.string(), "how grading was protected: split (expected values were never where the program ran), separate (files looked at after its death) or shared_process (tests in its own process)"),
        field("grader_version", pa.string(), "version of the grading code", nullable=False),
        field("measured", _MEASURED, "what the program cost; null unless the rubric weighs it and every case passed"),
        field("compiler_message", pa.string(), "what the compiler said, bounded in length; null where nothing was compiled"),
        field("signals", pa.list_(pa.string()), "what the program's source has in common with known cheats; hints for people, never part of the reward; null without a program"),
        field("impossible", pa.bool_(), "whether the task is a canary that no honest program can pass"),
        field("sandbox", pa.string(), "back-end the program ran in"),
        field("host", pa.string(), "machine whose sandbox it was; null without one, and where it failed on the machine that asked for it"),
        field("image", pa.string(), "image the program found there"),
        field("image_digest", pa.string(), "digest of that image, in hex: see the table images"),
        field("limits_enforced_by", pa.string(), "cgroup-v1, cgroup-v2 or rlimits"),
        field("wall_s", pa.float64(), "time the sandbox was open, on the host's clock", "seconds"),
        field("cpu_s", pa.float64(), "processor time of the sandbox", "seconds"),
        field("peak_memory_bytes", pa.int64(), "most memory the sandbox held at once", "bytes"),
        field("failure", pa.string(), "what failed, when outcome_class is not policy"),
        field("evidence", pa.string(), "what the host saw of the failure"),
        field("quarantine_reasons", pa.list_(pa.string()), "expectations this row breaks; a row with any is never trained on", nullable=False),
        field("started_at", TIMESTAMP, "when the attempt began", "UTC microseconds", nullable=False),
        field("ended_at", TIMESTAMP, "when the attempt ended", "UTC microseconds", nullable=False),
    ]
)  # fmt: skip

TASKS = pa.schema(
    [
        field("task_hash", pa.string(), "SHA-256 of the task's canonical record, in hex; unique", nullable=False),
        field("task_id", pa.string(), "the task's name in its source", nullable=False),
        field("source", pa.string(), "where it comes from", nullable=False),
        field("split", pa.string(), "train or heldout", nullable=False),
        field("kind", pa.string(), "kind of check: see docs/tasks.md", nullable=False),
        field("language", pa.string(), "what is submitted: a programming language, sql or diff; null for an answer in prose"),
        field("prompt", pa.string(), "what the policy is asked", nullable=False),
        field("visible_cases", pa.int32(), "cases that may be shown to the policy", "cases", nullable=False),
        field("hidden_cases", pa.int32(), "cases that may not", "cases", nullable=False),
        field("unsupported", pa.string(), "why it cannot be graded; null when it can"),
        field("gold_outcome", pa.string(), "outcome of the gold solution when the task was admitted; null without a gold"),
        field("record", pa.string(), "the whole task in our JSONL format, canonical", nullable=False),
        field("added_at", TIMESTAMP, "when it was first seen", "UTC microseconds", nullable=False),
    ]
)  # fmt: skip

_CONSUMED = pa.struct(
    [
        field("trajectory_id", pa.string(), "the trajectory trained on"),
        field("optimizer_step", pa.int32(), "optimizer step of the run that used it", "steps"),
        field("advantage", pa.float64(), "advantage it was given"),
        field("tokens", pa.int32(), "tokens of it in the loss", "tokens"),
    ]
)
_OPTIMIZER_STEP = pa.struct(
    [
        field("optimizer_step", pa.int32(), "step of the run, from 1", "steps"),
        field("loss", pa.float64(), "loss over the optimizer batch", "per token"),
        field("grad_norm", pa.float64(), "norm of the gradient before clipping"),
        field("clip_fraction", pa.float64(), "share of tokens whose ratio was clipped", "0..1"),
        field("sampler_kl", pa.float64(), "mean k3 of trainer against sampler log-probabilities", "nats"),
        field(
            "effective_share",
            pa.float64(),
            "Kish's effective sample size of the tokens' weights p_trainer / p_sampler, as a share of the tokens",
            "0..1",
        ),
        field(
            "largest_logprob_difference",
            pa.float64(),
            "largest difference of trainer and sampler log-probability of a token",
            "nats",
        ),
        field("tokens", pa.int32(), "tokens in the loss", "tokens"),
        field("seconds", pa.float64(), "time the step took", "seconds"),
    ]
)
POLICIES = pa.schema(
    [
        field("run_id", pa.string(), "the run this belongs to", nullable=False),
        field("policy_version", pa.int32(), "0 is the base policy, n the result of cycle n", "versions", nullable=False),
        field("parent_version", pa.int32(), "version it was trained from; null for the base policy", "versions"),
        field("checkpoint", pa.string(), "folder of the weights, relative to the home folder unless absolute", nullable=False),
        field("weights_hash", pa.string(), "SHA-256 of the weight files, in hex", nullable=False),
        field("batch_hash", pa.string(), "SHA-256 of the training batch, in hex; null for the base policy"),
        field("trajectories_version", pa.int64(), "version of the trajectories table it was trained from", "versions"),
        field("spec_hash", pa.string(), "SHA-256 of the resolved spec without what changes no row (paths, quality, ports, timeouts), in hex", nullable=False),
        field("optimizer_steps", pa.list_(_OPTIMIZER_STEP), "what each optimizer step of this cycle did"),
        field("consumed", pa.list_(_CONSUMED), "the consumption ledger: what each step was trained on", nullable=False),
        field("created_at", TIMESTAMP, "when it was committed", "UTC microseconds", nullable=False),
    ]
)  # fmt: skip

CHECKS = pa.schema(
    [
        field("run_id", pa.string(), "the run this belongs to", nullable=False),
        field("cycle", pa.int32(), "cycle whose rows were checked", "cycles", nullable=False),
        field("chunk", pa.int32(), "chunk whose rows were checked; null for a check over the whole cycle", "chunks"),
        field("suite", pa.string(), "name of the expectation suite", nullable=False),
        field("expectation", pa.string(), "what was expected", nullable=False),
        field("column", pa.string(), "column it looks at, where there is one"),
        field("level", pa.string(), "row (a breach quarantines rows) or batch (a breach stops the run or warns)", nullable=False),
        field("success", pa.bool_(), "whether it held", nullable=False),
        field("observed", pa.float64(), "the measured value, or the number of rows that broke it"),
        field("limit", pa.float64(), "the limit it was held against"),
        field("rows", pa.int32(), "rows looked at", "rows", nullable=False),
        field("detail", pa.string(), "the rows or values that broke it, bounded in length"),
        field("checked_at", TIMESTAMP, "when", "UTC microseconds", nullable=False),
        field("suite_version", pa.int32(), "version of the suite's file; null for older rows", "versions"),
        field("severity", pa.string(), "stop or warn: what a breach of a batch-level check does; null for a row-level one"),
    ]
)  # fmt: skip

RUNS = pa.schema(
    [
        field("run_id", pa.string(), "the run; unique", nullable=False),
        field("name", pa.string(), "name in the spec", nullable=False),
        field("spec_hash", pa.string(), "SHA-256 of the resolved spec without what changes no row (paths, quality, ports, timeouts), in hex", nullable=False),
        field("spec", pa.string(), "the resolved spec, as YAML", nullable=False),
        field("tasks_hash", pa.string(), "SHA-256 over the content hashes of its tasks, in hex", nullable=False),
        field("code_version", pa.string(), "version of Headrace", nullable=False),
        field("versions", pa.string(), "versions of the libraries that matter, as JSON", nullable=False),
        field("host", pa.string(), "machine it was started on", nullable=False),
        field("started_at", TIMESTAMP, "when it was first started", "UTC microseconds", nullable=False),
    ]
)  # fmt: skip

EVENTS = pa.schema(
    [
        field("run_id", pa.string(), "the run this belongs to", nullable=False),
        field("session", pa.string(), "one start of `headrace run`; a resumed run has several", nullable=False),
        field("cycle", pa.int32(), "cycle it happened in; null outside a cycle", "cycles"),
        field("event", pa.string(), "what happened: started, resumed, stage, engine_lost, gate_stopped, grader_broken, impossible_rewarded, finished, failed, interrupted", nullable=False),
        field("stage", pa.string(), "stage it belongs to: setup, engine, rollout, quality, train, evaluate"),
        field("seconds", pa.float64(), "time it took, where it took any", "seconds"),
        field("detail", pa.string(), "more, as JSON"),
        field("at", TIMESTAMP, "when", "UTC microseconds", nullable=False),
    ]
)  # fmt: skip

_VERSIONED = pa.struct([field("name", pa.string(), "its name"), field("version", pa.string(), "its version")])
IMAGES = pa.schema(
    [
        field("name", pa.string(), "name by which a spec asks for it", nullable=False),
        field("digest", pa.string(), "SHA-256 of the listing of all its files, in hex; of `host`: of the interpreter's version, the platform and bubblewrap's version; of an engine's own image: its id", nullable=False),
        field("definition_digest", pa.string(), "SHA-256 of its definition and those below, in hex; null for one without"),
        field("languages", pa.list_(_VERSIONED), "languages it has programs for; null where nobody looked"),
        field("packages", pa.list_(_VERSIONED), "Debian packages in it; null where nobody looked"),
        field("builder", pa.string(), "how it was built: debootstrap or dockerfile; host is this machine's own system, docker an engine's own image", nullable=False),
        field("architecture", pa.string(), "processor it is for", nullable=False),
        field("built_at", TIMESTAMP, "when it was built; null for host", "UTC microseconds"),
        field("first_used_at", TIMESTAMP, "when a run first used it", "UTC microseconds", nullable=False),
    ]
)  # fmt: skip

TABLES: dict[str, pa.Schema] = {
    "trajectories": TRAJECTORIES,
    "tasks": TASKS,
    "policies": POLICIES,
    "checks": CHECKS,
    "runs": RUNS,
    "events": EVENTS,
    "images": IMAGES,
}
"""Every table, by name."""

ROWS: dict[str, str] = {
    "trajectories": "one attempt at one sample of a task: what was asked, sampled, run, graded and trained on",
    "tasks": "one version of a task, by its content",
    "policies": "one policy version of a run: where its weights are, and the samples and steps that made it",
    "checks": "one expectation, over the rows of one chunk or the batch of one cycle",
    "runs": "one run: its spec and what it ran with",
    "events": "one thing that happened in a run",
    "images": "one image that a run used",
}
"""What a row of each table is."""

SCHEMA_VERSION = 2
"""Version of all schemas together. Raise it with every change, and say in `migrate.MIGRATIONS` how to get there."""

PARTITIONED_BY: dict[str, list[str]] = {"trajectories": ["run_id", "cycle"]}
"""Columns whose values split a table into folders; a table not named here is not split."""
