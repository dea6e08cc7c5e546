"""Losses against a float64 NumPy reading of their equations, values and gradients, and against published hand-size values."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raydense.models.losses import (
    listwise,
    listwise_distillation,
    masked_tokens,
    passage_centric,
    pointwise,
    query_centric,
    softmax_binary,
    span_contrastive,
)

VECTORS = Path(__file__).parents[3] / "shared" / "data" / "eval-vectors" / "losses.json"


def softmax_reading(scores, positive, mask, temperature):
    """Equation 3 of PAIR with temperature, query by query: the loss, and its gradient (softmax minus one-hot)."""
    total, gradient = 0.0, np.zeros_like(scores)
    for i, p in enumerate(positive):
        kept = [j for j in range(scores.shape[1]) if j == p or not mask[i, j]]
        z = scores[i, kept] / temperature
        e = np.exp(z - z.max())
        share = e / e.sum()
        total += -(z[kept.index(p)] - z.max() - np.log(e.sum()))
        gradient[i, kept] = share / temperature
        gradient[i, p] -= 1 / temperature
    return total / len(positive), gradient / len(positive)


def sigmoid_reading(scores, labels, valid):
    """Binary cross-entropy and its gradient (sigmoid minus label), with log(1 + e^x) without overflow."""
    softplus = np.maximum(scores, 0) + np.log1p(np.exp(-np.abs(scores)))
    n = max(valid.sum(), 1)
    sigmoid = np.where(scores >= 0, 1 / (1 + np.exp(-np.abs(scores))), 1 - 1 / (1 + np.exp(-np.abs(scores))))
    return ((softplus - labels * scores) * valid).sum() / n, (sigmoid - labels) * valid / n


def softmax_binary_reading(scores, relevant, kept, temperature):
    """Multiple positives eq. 3 over the kept columns, and its gradient through the softmax, query by query."""
    total, gradient = 0.0, np.zeros_like(scores)
    for i in range(len(scores)):
        columns = np.flatnonzero(kept[i])
        z = scores[i, columns] / temperature
        f = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
        sigmoid, y = 1 / (1 + np.exp(-f)), relevant[i, columns]
        total += -(np.log(sigmoid[y]).sum() + np.log(1 - sigmoid[~y]).sum())
        by_share = sigmoid - y  # of each -log term by f
        gradient[i, columns] = f * (by_share - (by_share * f).sum()) / temperature
    return total / len(scores), gradient / len(scores)


def distillation_reading(first, second, valid):
    """KL of the two lists' softmaxes, mean over queries, with its gradients by the scores of both."""
    total, by_first, by_second = 0.0, np.zeros_like(first), np.zeros_like(second)
    for i in range(len(first)):
        m = np.flatnonzero(valid[i])
        a, b = (np.exp(s[i, m] - s[i, m].max()) for s in (first, second))
        a, b = a / a.sum(), b / b.sum()
        ratio = (first[i, m] - second[i, m]) - (log_sum(first[i, m]) - log_sum(second[i, m]))
        each = (a * ratio).sum()
        total += each
        by_first[i, m] = a * (ratio - each)
        by_second[i, m] = b - a
    return total / len(first), by_first / len(first), by_second / len(first)


def log_sum(scores):
    return scores.max() + np.log(np.exp(scores - scores.max()).sum())


def value_and_gradient(loss, scores, dtype, *rest):
    leaf = torch.tensor(scores, dtype=dtype, requires_grad=True)
    value = loss(leaf, *rest)
    value.backward()
    return value.item(), leaf.grad.double().numpy()


@st.composite
def batches(draw, most_queries=6, most_passages=12):
    nq, n = draw(st.integers(1, most_queries)), draw(st.integers(1, most_passages))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scores = rng.normal(size=(nq, n)) * draw(st.sampled_from([0.1, 1.0, 30.0]))
    return scores, rng.integers(0, n, nq), rng.random((nq, n)) < draw(st.sampled_from([0.0, 0.3, 1.0]))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-3)])
@given(batch=batches(), temperature=st.sampled_from([1.0, 0.05, 20.0]))
def test_query_centric_is_the_equation(dtype, tolerance, batch, temperature):
    scores, positive, mask = batch
    scores = scores.astype(np.float32).astype(np.float64)
    value, gradient = value_and_gradient(query_centric, scores, dtype, torch.tensor(positive), torch.tensor(mask), temperature)
    wanted, wanted_gradient = softmax_reading(scores, positive, mask, temperature)
    assert value == pytest.approx(wanted, rel=tolerance, abs=tolerance)
    np.testing.assert_allclose(gradient, wanted_gradient, rtol=tolerance, atol=tolerance)


@given(batch=batches())
def test_listwise_is_query_centric_on_the_first_column(batch):
    scores, _, invalid = batch
    invalid[:, 0] = False
    value, gradient = value_and_gradient(listwise, scores, torch.float64, torch.tensor(~invalid))
    wanted, wanted_gradient = softmax_reading(scores, np.zeros(len(scores), int), invalid, 1.0)
    assert value == pytest.approx(wanted, rel=1e-6, abs=1e-9)
    np.testing.assert_allclose(gradient, wanted_gradient, rtol=1e-6, atol=1e-12)


@given(batch=batches())
def test_pointwise_is_the_equation(batch):
    scores, _, relevant = batch
    labels = relevant.astype(float)
    value, gradient = value_and_gradient(pointwise, scores, torch.float64, torch.tensor(labels))
    wanted, wanted_gradient = sigmoid_reading(scores, labels, np.ones_like(relevant))
    assert value == pytest.approx(wanted, rel=1e-6, abs=1e-12)
    np.testing.assert_allclose(gradient, wanted_gradient, rtol=1e-6, atol=1e-12)


@given(batch=batches(), temperature=st.sampled_from([1.0, 0.05]), seed=st.integers(0, 2**32))
def test_passage_centric_is_the_equation(batch, temperature, seed):
    """PAIR eq. 5, term by term: only s(p+, q), s(p+, p-) of what is not masked, and further queries where given."""
    scores, positive, mask = batch
    rng = np.random.default_rng(seed)
    among, others = rng.normal(size=scores.shape), rng.normal(size=(len(scores), 4))
    others[rng.random(others.shape) < 0.3] = -np.inf
    for more in (None, others):
        leaves = [torch.tensor(x, requires_grad=True) for x in (scores, among)]
        given_others = None if more is None else torch.tensor(more)
        value = passage_centric(*leaves, torch.tensor(positive), torch.tensor(mask), temperature, given_others)
        value.backward()
        wanted, by_scores, by_among = 0.0, np.zeros_like(scores), np.zeros_like(among)
        for i, p in enumerate(positive):
            columns = [j for j in range(scores.shape[1]) if j != p and not mask[i, j]]
            z = np.concatenate([[scores[i, p]], among[i, columns], [] if more is None else more[i]]) / temperature
            share = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
            wanted += log_sum(z) - z[0]
            by_scores[i, p] = (share[0] - 1) / temperature
            by_among[i, columns] = share[1 : 1 + len(columns)] / temperature
        assert value.item() == pytest.approx(wanted / len(scores), rel=1e-6, abs=1e-9)
        np.testing.assert_allclose(leaves[0].grad.numpy(), by_scores / len(scores), rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(leaves[1].grad.numpy(), by_among / len(scores), rtol=1e-6, atol=1e-12)


@given(batch=batches(), temperature=st.sampled_from([1.0, 0.05]))
def test_softmax_binary_is_the_equation(batch, temperature):
    scores, first, absent = batch
    absent[np.arange(len(scores)), first] = False
    relevant = absent.copy()[:, ::-1]
    relevant[np.arange(len(scores)), first] = True
    value, gradient = value_and_gradient(
        softmax_binary, scores, torch.float64, torch.tensor(relevant.copy()), torch.tensor(absent), temperature
    )
    wanted, wanted_gradient = softmax_binary_reading(scores, relevant, ~absent, temperature)
    assert value == pytest.approx(wanted, rel=1e-6)
    np.testing.assert_allclose(gradient, wanted_gradient, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("direction", ["de_ce", "ce_de"])
@given(batch=batches())
def test_listwise_distillation_is_the_equation_with_gradients_of_both(direction, batch):
    scores, first, invalid = batch
    invalid[np.arange(len(scores)), first] = False
    other = np.random.default_rng(3).normal(size=scores.shape)
    leaves = [torch.tensor(x, requires_grad=True) for x in (scores, other)]
    value = listwise_distillation(*leaves, torch.tensor(~invalid), direction)
    value.backward()
    wanted, *gradients = distillation_reading(*((scores, other) if direction == "de_ce" else (other, scores)), ~invalid)
    assert value.item() == pytest.approx(wanted, rel=1e-6, abs=1e-9)
    for leaf, gradient in zip(leaves if direction == "de_ce" else leaves[::-1], gradients, strict=True):
        np.testing.assert_allclose(leaf.grad.numpy(), gradient, rtol=1e-6, atol=1e-9)


@given(seed=st.integers(0, 2**32), texts=st.integers(1, 6), scale=st.sampled_from([1.0, 1e4]))
def test_masked_tokens_is_the_equation(seed, texts, scale):
    """The cross-entropy of every masked token, read one by one, has the same mean and gradient as what the texts add up to."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 5, texts)
    likelihoods = [-rng.random(n) * scale for n in counts]
    summed = np.array([each.sum() for each in likelihoods])
    value, gradient = value_and_gradient(masked_tokens, summed, torch.float64, torch.tensor(counts))
    tokens = max(counts.sum(), 1)
    assert value == pytest.approx(-np.concatenate([[0.0], *likelihoods]).sum() / tokens, rel=1e-6)
    np.testing.assert_allclose(gradient, np.full(texts, -1 / tokens), rtol=1e-6)


def test_workers_average_to_the_masked_tokens_of_all_workers():
    likelihood, count = torch.tensor([-3.0, -1.0, -8.0, -0.5]), torch.tensor([4.0, 1.0, 9.0, 0.0])
    whole = masked_tokens(likelihood, count)
    halves = [masked_tokens(likelihood[half], count.sum() / 2) for half in (slice(0, 2), slice(2, 4))]
    assert (sum(halves) / 2).item() == pytest.approx(whole.item(), rel=1e-6)
    one_token = masked_tokens(torch.tensor([-6.0]), torch.tensor(1.0) / 4)
    assert one_token.item() / 4 == 6.0


def test_no_masked_token_costs_nothing():
    likelihood = torch.zeros(3, requires_grad=True)
    loss = masked_tokens(likelihood, torch.zeros(3))
    loss.backward()
    assert loss.item() == 0.0
    assert torch.isfinite(likelihood.grad).all()


@given(seed=st.integers(0, 2**32), pairs=st.integers(1, 5), workers=st.integers(1, 3), temperature=st.sampled_from([1.0, 0.05]))
def test_span_contrastive_is_the_equation(seed, pairs, workers, temperature):
    """Eq. 5 span by span over the spans of all workers, value and gradients by the spans; workers average to the whole batch's."""
    rng = np.random.default_rng(seed)
    m = pairs * workers
    spans = rng.normal(size=(2 * m, 3))  # all passages, then all contexts
    partner = np.roll(np.arange(2 * m), m)
    alike = rng.random((2 * m, 2 * m)) < 0.2
    wanted, by_score = 0.0, np.zeros((2 * m, 2 * m))
    for i in range(2 * m):
        others = [j for j in range(2 * m) if j != i and (j == partner[i] or not alike[i, j])]
        z = spans[others] @ spans[i] / temperature
        wanted += log_sum(z) - spans[i] @ spans[partner[i]] / temperature
        by_score[i, others] = np.exp(z - log_sum(z)) / temperature
        by_score[i, partner[i]] -= 1 / temperature
    leaf = torch.tensor(spans, requires_grad=True)
    losses = []
    for worker in range(workers):
        first = np.arange(worker * pairs, (worker + 1) * pairs)
        own = np.concatenate([first, m + first])
        left_out = torch.tensor((alike | np.eye(2 * m, dtype=bool))[own])
        losses.append(span_contrastive(leaf[own] @ leaf.T, torch.tensor(partner[own]), left_out, temperature))
    loss = sum(losses) / workers
    loss.backward()
    assert loss.item() == pytest.approx(wanted / (2 * m), rel=1e-6, abs=1e-9)
    np.testing.assert_allclose(leaf.grad.numpy(), (by_score + by_score.T) @ spans / (2 * m), rtol=1e-6, atol=1e-9)


def test_lists_that_agree_are_at_no_distance():
    scores = torch.randn(3, 5, dtype=torch.float64)
    assert listwise_distillation(scores, scores + 7).item() == pytest.approx(0, abs=1e-12)
    assert listwise_distillation(scores[:, :1], scores[:, 1:2]).item() == 0.0


def test_gradients_are_the_finite_differences():
    rng = np.random.default_rng(0)
    scores = torch.tensor(rng.normal(size=(3, 5)), requires_grad=True)
    positive, mask = torch.tensor([0, 2, 4]), torch.tensor(rng.random((3, 5)) < 0.3)
    assert torch.autograd.gradcheck(lambda s: query_centric(s, positive, mask, 0.3), scores)
    assert torch.autograd.gradcheck(lambda s: listwise(s, ~mask), scores)
    assert torch.autograd.gradcheck(lambda s: pointwise(s, mask), scores)
    other = torch.tensor(rng.normal(size=(3, 5)), requires_grad=True)
    assert torch.autograd.gradcheck(lambda s, o: passage_centric(s, o, positive, mask, 0.3), (scores, other))
    assert torch.autograd.gradcheck(lambda s: softmax_binary(s, mask, torch.zeros_like(mask), 0.3), scores)
    assert torch.autograd.gradcheck(lambda s, o: listwise_distillation(s, o, ~mask), (scores, other))
    assert torch.autograd.gradcheck(lambda s: span_contrastive(s, positive, mask, 0.3), scores)
    assert torch.autograd.gradcheck(lambda s: masked_tokens(s[0], positive), scores)


@given(st.integers(0, 2**32))
@settings(max_examples=20)
def test_what_is_masked_changes_neither_loss_nor_gradient(seed):
    rng = np.random.default_rng(seed)
    scores, more = rng.normal(size=(4, 6)), rng.normal(size=(4, 3)) * 1e3
    positive = torch.tensor(rng.integers(0, 6, 4))
    alone, gradient = value_and_gradient(query_centric, scores, torch.float64, positive)
    mask = torch.cat([torch.zeros(4, 6, dtype=torch.bool), torch.ones(4, 3, dtype=torch.bool)], dim=1)
    padded, wide = value_and_gradient(query_centric, np.hstack([scores, more]), torch.float64, positive, mask)
    assert padded == pytest.approx(alone, rel=1e-12)
    np.testing.assert_allclose(wide[:, :6], gradient, rtol=1e-12)
    assert not wide[:, 6:].any()


def test_a_mask_never_hides_the_positive_itself():
    scores = torch.tensor([[1.0, 2.0, 3.0]])
    all_known = torch.ones(1, 3, dtype=torch.bool)
    assert query_centric(scores, torch.tensor([1]), all_known).item() == 0.0
    assert all_known.all()


def test_temperature_divides_scores():
    scores, positive = torch.randn(3, 7), torch.tensor([1, 2, 3])
    assert query_centric(scores, positive, None, 0.1).item() == pytest.approx(query_centric(scores / 0.1, positive).item(), rel=1e-6)
    assert query_centric(scores, positive, None, 0.1).item() != pytest.approx(query_centric(scores, positive).item(), rel=1e-2)


@pytest.mark.parametrize("extreme", [1e4, -1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_extreme_scores_give_numbers(extreme, dtype):
    scores = torch.tensor([[extreme, 0.0, -extreme], [0.0, extreme, 0.0]], dtype=dtype, requires_grad=True)
    valid = torch.tensor([[True, True, False], [True, True, True]])
    labels = torch.tensor([[1.0, 0, 0], [1.0, 0, 0]])
    losses = [
        query_centric(scores, torch.tensor([0, 0]), None, 0.05),
        listwise(scores, valid),
        pointwise(scores, labels),
        passage_centric(scores, scores.flip(1), torch.tensor([0, 0]), ~valid, 0.05),
        softmax_binary(scores, labels.bool(), ~valid, 0.05),
        listwise_distillation(scores, scores.flip(1), valid),
        listwise_distillation(scores, -scores, valid, "ce_de"),
        span_contrastive(scores, torch.tensor([0, 0]), torch.eye(3, dtype=torch.bool)[1:], 0.05),
        masked_tokens(scores[0], torch.tensor([1, 0, 2])),
    ]
    sum(losses).backward()
    assert all(torch.isfinite(loss) and loss.dtype == torch.float32 for loss in losses)
    assert torch.isfinite(scores.grad).all()


def test_a_list_of_one_passage_costs_nothing():
    scores = torch.tensor([[3.0], [-2.0]], requires_grad=True)
    loss = listwise(scores)
    loss.backward()
    assert loss.item() == 0.0
    assert not scores.grad.any()


@pytest.mark.skipif(not VECTORS.is_file(), reason="shared data is absent")
def test_published_values():
    vectors = json.loads(VECTORS.read_text())
    expected = vectors["expected"]
    scores, labels = torch.tensor([vectors["scores"]], dtype=torch.float64), torch.tensor([vectors["labels"]])
    positives = labels[0].nonzero().squeeze(1)
    rows = scores.expand(len(positives), -1)
    softmax = query_centric(rows, positives) * len(positives)
    unique = query_centric(rows, positives, labels.bool().expand(len(positives), -1)) * len(positives)
    assert softmax.item() == pytest.approx(expected["softmax_loss (listwise, labels not normalised)"], rel=1e-9)
    name = "unique_softmax_loss (each positive against the negatives only: the multi-positive InfoNCE form)"
    assert unique.item() == pytest.approx(expected[name], rel=1e-9)
    assert pointwise(scores, labels).item() * 4 == pytest.approx(expected["pointwise_sigmoid_loss"], rel=1e-9)
    case = vectors["allRank"]["cases"][1]
    assert case["loss"].startswith("rankNet")
    difference = torch.tensor([case["scores"][0] - case["scores"][1]], dtype=torch.float64)
    assert pointwise(difference, torch.ones(1)).item() == pytest.approx(case["value"], rel=1e-7)
