import pytest
import torch
from transformers import AutoModelForCausalLM

from training.batch import PromptGroup
from training.packing import Pass, pack, passes


@pytest.fixture(scope="module")
def model(tiny_checkpoint):
    return AutoModelForCausalLM.from_pretrained(tiny_checkpoint, dtype=torch.float32, attn_implementation="sdpa").eval()


def packed_logp(model, work: Pass) -> torch.Tensor:
    logits = model(
        input_ids=work.input_ids,
        position_ids=work.position_ids,
        attention_mask=work.attention_mask,
        logits_to_keep=work.predicting,
    ).logits[0]
    return torch.log_softmax(logits, -1).gather(-1, work.targets[:, None])[:, 0]


def row_by_row_logp(model, group: PromptGroup) -> torch.Tensor:
    """The plain computation: each completion alone after the prompt, default mask and positions."""
    rows = []
    for member in group.members:
        ids = torch.tensor([*group.prompt_token_ids, *member.token_ids])
        logp = torch.log_softmax(model(input_ids=ids[None]).logits[0], -1)
        rows.append(
            logp[len(group.prompt_token_ids) - 1 : -1].gather(-1, torch.tensor(member.token_ids)[:, None])[:, 0]
        )
    return torch.cat(rows)


def weights(group: PromptGroup) -> torch.Tensor:
    return torch.tensor([m.advantage * kept for m in group.members for kept in m.loss_mask])


def gradient(model, loss: torch.Tensor) -> torch.Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)])


def test_layout_by_hand(make_group):
    group = make_group(0, prompt=3, lengths=(2, 1))
    work = pack(group, group.members)
    assert work.input_ids[0].tolist() == [
        *group.prompt_token_ids,
        *group.members[0].token_ids,
        *group.members[1].token_ids,
    ]
    assert work.position_ids[0].tolist() == [0, 1, 2, 3, 4, 3]
    # both completions' first tokens are predicted at the prompt's last place
    assert work.predicting.tolist() == [2, 3, 2]
    assert work.targets.tolist() == [*group.members[0].token_ids, *group.members[1].token_ids]
    assert work.attention_mask[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 0],
        [1, 1, 1, 0, 0, 1],
    ]
    assert work.advantages.tolist() == pytest.approx([group.members[0].advantage] * 2 + [group.members[1].advantage])


def test_log_probabilities_and_gradient_equal_row_by_row(model, make_group):
    group = make_group(1)
    packed, plain = packed_logp(model, pack(group, group.members)), row_by_row_logp(model, group)
    torch.testing.assert_close(packed, plain, rtol=1e-5, atol=1e-5)
    of_packed, of_plain = (
        gradient(model, (packed * weights(group)).sum()),
        gradient(model, (plain * weights(group)).sum()),
    )
    assert (of_packed - of_plain).abs().max() <= 1e-5 * of_plain.abs().max()


@pytest.mark.parametrize("bound", [12, 16, 20, 21, 24, 33, 1000])
def test_gradient_does_not_depend_on_the_cut(model, make_group, bound):
    group = make_group(2)
    whole = gradient(model, (row_by_row_logp(model, group) * weights(group)).sum() / group.tokens)
    works = passes(group, bound)
    logps = [packed_logp(model, work) for work in works]
    parts = [
        torch.where(work.sampled, logp * work.advantages, 0.0).sum() for work, logp in zip(works, logps, strict=True)
    ]
    summed = gradient(model, torch.stack(parts).sum() / group.tokens)
    assert (summed - whole).abs().max() <= 1e-5 * whole.abs().max()
    if len(works) > 1:
        # control: averaging each pass by its own tokens, as a micro-batch mean does, is another gradient
        means = [part / work.sampled.sum() for part, work in zip(parts, works, strict=True)]
        averaged = gradient(model, torch.stack(means).mean())
        assert (averaged - whole).abs().max() > 1e-2 * whole.abs().max()


def test_passes_keep_within_the_bound(make_group):
    group = make_group(3, prompt=11, lengths=(5, 1, 9, 7))
    assert [work.input_ids.shape[1] for work in passes(group, 33)] == [33]
    assert [work.input_ids.shape[1] for work in passes(group, 32)] == [26, 18]
    # 11 + 9 does not fit in 16: that completion goes alone, and longer
    assert [work.input_ids.shape[1] for work in passes(group, 17)] == [17, 20, 18]


def test_members_without_trainable_tokens_need_no_pass(make_group):
    group = make_group(4, lengths=(4, 0, 6))
    assert [work.targets.shape[0] for work in passes(group, 1000)] == [10]
