"""The outcome contract: how an attempt can end, whose fault that is, and whether it earns a reward.

class    outcomes                                                                    reward
policy   what the policy's program did                                               a finite number
infra    what our machines failed at; needs evidence from the host's side            null
grader   what the grader failed at                                                   null
task     the task itself is broken                                                   null

An unknown exception is infra, never a zero. Once the candidate's code has run, what it breaks inside its own sandbox
is its own fault, so a policy cannot buy a null.
"""

from enum import StrEnum


class OutcomeClass(StrEnum):
    """Whose fault an outcome is. Only `POLICY` is scored."""

    POLICY = "policy"
    INFRA = "infra"
    GRADER = "grader"
    TASK = "task"


class Outcome(StrEnum):
    """How one attempt of an episode ended."""

    PASSED = "passed"
    FAILED_TESTS = "failed_tests"
    SYNTAX_ERROR = "syntax_error"
    RUNTIME_ERROR = "runtime_error"
    TIME_LIMIT = "time_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    PROCESS_LIMIT = "process_limit"
    DISK_LIMIT = "disk_limit"
    POLICY_VIOLATION = "policy_violation"
    TAMPERED = "tampered"
    NO_SUBMISSION = "no_submission"
    TRUNCATED = "truncated"

    PROVISION_FAILED = "provision_failed"
    SANDBOX_LOST = "sandbox_lost"
    HOST_OUT_OF_MEMORY = "host_out_of_memory"
    ENGINE_FAILED = "engine_failed"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    STORAGE_FAILED = "storage_failed"

    GRADER_ERROR = "grader_error"
    VERIFIER_DISAGREEMENT = "verifier_disagreement"

    TASK_INVALID = "task_invalid"

    @property
    def outcome_class(self) -> OutcomeClass:
        """Whose fault this outcome is."""
        return _CLASS[self]

    @property
    def scored(self) -> bool:
        """Whether an attempt that ended this way carries a reward."""
        return self.outcome_class is OutcomeClass.POLICY


_CLASS = {
    Outcome.PASSED: OutcomeClass.POLICY,
    Outcome.FAILED_TESTS: OutcomeClass.POLICY,
    Outcome.SYNTAX_ERROR: OutcomeClass.POLICY,
    Outcome.RUNTIME_ERROR: OutcomeClass.POLICY,
    Outcome.TIME_LIMIT: OutcomeClass.POLICY,
    Outcome.MEMORY_LIMIT: OutcomeClass.POLICY,
    Outcome.OUTPUT_LIMIT: OutcomeClass.POLICY,
    Outcome.PROCESS_LIMIT: OutcomeClass.POLICY,
    Outcome.DISK_LIMIT: OutcomeClass.POLICY,
    Outcome.POLICY_VIOLATION: OutcomeClass.POLICY,
    Outcome.TAMPERED: OutcomeClass.POLICY,
    Outcome.NO_SUBMISSION: OutcomeClass.POLICY,
    Outcome.TRUNCATED: OutcomeClass.POLICY,
    Outcome.PROVISION_FAILED: OutcomeClass.INFRA,
    Outcome.SANDBOX_LOST: OutcomeClass.INFRA,
    Outcome.HOST_OUT_OF_MEMORY: OutcomeClass.INFRA,
    Outcome.ENGINE_FAILED: OutcomeClass.INFRA,
    Outcome.DEADLINE_EXCEEDED: OutcomeClass.INFRA,
    Outcome.STORAGE_FAILED: OutcomeClass.INFRA,
    Outcome.GRADER_ERROR: OutcomeClass.GRADER,
    Outcome.VERIFIER_DISAGREEMENT: OutcomeClass.GRADER,
    Outcome.TASK_INVALID: OutcomeClass.TASK,
}
