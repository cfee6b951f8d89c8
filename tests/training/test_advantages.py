import pytest

from training.advantages import group_advantages


def test_grpo_golden_vector():
    # mean 0.25, unbiased std 0.5: 0.75 / 0.500001 and -0.25 / 0.500001
    assert group_advantages([1, 0, 0, 0]) == pytest.approx([1.499997, -0.499999, -0.499999, -0.499999], abs=1e-6)


def test_unscored_members_are_outside_mean_and_deviation():
    advantages = group_advantages([1, None, 0, 0])
    assert advantages[1] is None
    scored = [advantages[0], advantages[2], advantages[3]]
    # of [1, 0, 0]: mean 1/3, unbiased variance (4/9 + 1/9 + 1/9) / 2 = 1/3; 2/3 / sqrt(1/3) = 1.154701
    assert scored == pytest.approx([1.154699, -0.577349, -0.577349], abs=1e-6)
    # control: an infra failure kept as a reward gives what users of other frameworks complained about
    assert scored != pytest.approx([0.866, -0.866, -0.866], abs=1e-2)


@pytest.mark.parametrize(
    "rewards",
    [
        [0.1] * 8,  # summed in floating point, its deviation is not exactly 0
        [0.1 + 0.2, 0.3, 0.3],  # differs by rounding only
        [0.0, 0.0],
        [1.0, None, None],  # one scored member has nobody to be better than
        [None, None],
        [],
    ],
)
def test_no_signal(rewards):
    assert group_advantages(rewards) == [None] * len(rewards)


def test_advantages_of_a_group_sum_to_zero():
    advantages = [one for one in group_advantages([0.3, 0.9, 0.1, 0.55, 1.0]) if one is not None]
    assert len(advantages) == 5
    assert sum(advantages) == pytest.approx(0, abs=1e-12)
