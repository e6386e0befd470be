"""Situations in which attention libraries were reported wrong, as a Python caller meets them; the right answers are
closed forms. What the C interface meets is in tests/bugs_*.cpp."""

import math

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: NumPy has no bfloat16 without it")

import numpy as np  # noqa: E402
from torch_help import judge, operands, textbook, working  # noqa: E402

import tessera  # noqa: E402
import tessera.compat.flash_attn as fa2  # noqa: E402
import tessera.compat.flash_attn_interface as fa3  # noqa: E402

F = torch.nn.functional


def marked(device, *shape, dtype=None):
    """Zeros but for row 0 of the sequence, which is 1024 everywhere."""
    x = torch.zeros(shape, dtype=dtype or working(device), device=device)
    x[:, 0] = 1024
    return x


def near(x, y, atol):
    y = torch.as_tensor(y, dtype=torch.float64, device=x.device)
    assert x.shape == y.shape and torch.allclose(x.double(), y, rtol=0, atol=atol), (x, y)


def test_more_queries_than_keys_under_a_causal_mask(device):
    """Rows that see nothing: o 0, lse -inf, no gradient; the others' gradients are whole."""
    q = torch.randn(1, 5, 1, 64, device=device).to(working(device)).requires_grad_()
    k = torch.zeros(1, 2, 1, 64, device=device, dtype=q.dtype).requires_grad_()
    v = torch.ones_like(k.detach())
    v[:, 1] = 3
    v.requires_grad_()
    o, lse = tessera.attention(q, k, v, causal=True, return_lse=True)
    near(o[0, :, 0], torch.tensor([0.0, 0, 0, 1, 2])[:, None].expand(5, 64), 0)
    near(lse[0, 0], [-math.inf, -math.inf, -math.inf, 0, math.log(2)], 1e-5)
    dq, dk, dv = torch.autograd.grad(o, (q, k, v), torch.ones_like(o))
    near(dv[0, :, 0], torch.tensor([1.5, 0.5])[:, None].expand(2, 64), 1e-6)
    assert not dq[:, :3].any() and dq.isfinite().all() and dk.isfinite().all()


@pytest.mark.parametrize("length", [17, 300])
def test_windows_count_their_own_row(device, length):
    q, k, _ = operands(device, batch=1, seqlen_q=length, seqlen_k=length, heads_q=2, dim=64)
    v = torch.randn(1, length, 2, 64, device=device).to(q.dtype)
    o, lse = tessera.attention(q, k, v, window=(0, 0), return_lse=True)
    assert torch.equal(o, v)
    near(lse, torch.einsum("bihd,bihd->bhi", q.double(), k.double()) / 8, 1e-4)
    v = marked(device, 1, length, 2, 64)
    causal = tessera.attention(q, k, v, causal=True)
    for left in (length - 1, length, -1):
        near(tessera.attention(q, k, v, window=(left, 0)), causal.double(), 2e-3 * 1024)
    shorter = tessera.attention(q, k, v, window=(length - 2, 0))
    assert not shorter[:, -1].any() and causal[:, -1].all()
    near(shorter[:, :-1], causal[:, :-1].double(), 2e-3 * 1024)


def test_a_window_that_covers_everything_keeps_the_mask_causal(device):
    q, k, v = operands(device, seqlen_q=7, seqlen_k=7, heads_q=4, heads_kv=4, dim=64)
    windowed = tessera.attention(q, k, v, causal=True, window=(4096, 0))
    assert torch.equal(windowed[:, 0], v[:, 0])
    near(windowed, tessera.attention(q, k, v, causal=True).double(), 2e-3)
    near(tessera.attention(q, k, v, window=(4096, 4096)), tessera.attention(q, k, v).double(), 2e-3)
    k[:, 6], v[:, 6] = 1e3, 1e3
    assert torch.equal(tessera.attention(q, k, v, causal=True, window=(4096, 0))[:, :6], windowed[:, :6])


def test_the_right_bound_of_a_window_acts(device):
    q, k, v = operands(device, batch=1, seqlen_q=256, seqlen_k=256)
    before = tessera.attention(q, k, v, window=(16, 16))
    v[:, 255] = 1e3
    assert torch.equal(tessera.attention(q, k, v, window=(16, 16))[:, :239], before[:, :239])
    with pytest.raises(ValueError, match="-2"):
        tessera.attention(q, k, v, window=(-2, 0))


def test_gradients_with_layouts_of_their_own(device):
    """d_o as a transposed view beside a contiguous o; q, k, v as slices of one buffer, their gradients of another."""
    q, k, v = (x.requires_grad_() for x in operands(device, seqlen_q=32, seqlen_k=32, heads_kv=1, dim=64))
    o = tessera.attention(q, k, v, causal=True)
    d_o = torch.randn(2, 4, 32, 64, device=device).to(o.dtype).transpose(1, 2)
    assert d_o.stride() != o.stride()
    turned = torch.autograd.grad(o, (q, k, v), d_o, retain_graph=True)
    plain = torch.autograd.grad(o, (q, k, v), d_o.contiguous())
    for a, b in zip(turned, plain):
        near(a, b.double(), 2e-3 * max(1.0, b.abs().max().item()))
    qkv = torch.randn(1, 130, 3, 4, 64, device=device).to(q.dtype).requires_grad_()
    (found,) = torch.autograd.grad(tessera.attention(*qkv.unbind(2), causal=True).square().sum(), qkv)
    apart = [x.detach().clone().requires_grad_() for x in qkv.unbind(2)]
    right = torch.autograd.grad(tessera.attention(*apart, causal=True).square().sum(), apart)
    near(found, torch.stack(right, 2).double(), 2e-3 * max(1.0, found.abs().max().item()))


def test_the_gradient_of_a_plain_sum(device):
    """d_o with strides of 0: taken, and right."""
    _, k, v = operands(device, batch=1, seqlen_k=5, heads_kv=2, dim=8)
    q = torch.zeros_like(k)
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    o = tessera.attention(q, k, v, causal=True)
    _, dk, dv = torch.autograd.grad(o.sum(), (q, k, v))
    rows = [sum(1 / n for n in range(i + 1, 6)) for i in range(5)]
    near(dv[0, :, 0], torch.tensor(rows)[:, None].expand(5, 8), 2e-6 if device == "cpu" else 2e-3)
    assert not dk.any()


def test_the_gradient_of_a_softcap(device):
    q, k, v, d_o = (torch.zeros(1, n, 1, 8, dtype=working(device), device=device) for n in (1, 2, 2, 1))
    q[..., 0], k[:, 1, :, 0], v[:, 1, :, 0], d_o[..., 0] = 4, 1, 1, 1
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    o, lse = tessera.attention(q, k, v, scale=1.0, softcap=2.0, return_lse=True)
    near(lse[0, 0], [2.063836], 1e-5 if device == "cpu" else 1e-3)
    near(o[0, 0, 0, :1], [0.873034], 1e-5 if device == "cpu" else 1e-3)
    dq, dk, _ = torch.autograd.grad(o, (q, k, v), d_o)
    slack = 1e-6 if device == "cpu" else 1e-3
    near(dq[0, 0, 0, :1], [0.0078313], slack)
    near(dk[0, :, 0, 0], [-0.443383, 0.0313253], slack)


@pytest.mark.parametrize("shape", [(2, 3, 0), (0, 3, 7), (2, 0, 7)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_nothing_to_attend_to(device, shape, causal):
    batch, seqlen_q, seqlen_k = shape
    q = torch.randn(batch, seqlen_q, 4, 64, device=device).to(working(device)).requires_grad_()
    k, v = (torch.randn(batch, seqlen_k, 4, 64, device=device).to(q.dtype).requires_grad_() for _ in "kv")
    o, lse = tessera.attention(q, k, v, causal=causal, return_lse=True)
    assert o.shape == q.shape and lse.shape == (batch, 4, seqlen_q)
    assert not o.any() and torch.all(lse == -torch.inf)
    o.sum().backward()
    for x in (q, k, v):
        assert x.grad.shape == x.shape and not x.grad.any()


def test_a_sequence_without_keys_beside_one_with(device):
    q, k, v = (x[0].requires_grad_() for x in operands(device, batch=1, seqlen_q=4, seqlen_k=5))
    cu_q, cu_k = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([0, 2, 4], [0, 0, 5]))
    o, lse, _ = fa2.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 2, 5, return_attn_probs=True)
    assert not o[:2].any() and torch.all(lse[:, :2] == torch.inf)
    judge(o[None, 2:], q[None, 2:], k[None], v[None], lse[None, :, 2:])
    dq, dk, dv = torch.autograd.grad(o.sum(), (q, k, v))
    assert not dq[:2].any() and dv.any() and dk.isfinite().all()


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_what_lies_behind_a_cache_is_never_read(device, poison):
    cache = [torch.full((2, 3, 1, 64), poison, device=device, dtype=working(device)) for _ in "kv"]
    for x in cache:
        x[0, :1], x[1, :] = 0.5, 0.5
    q = torch.full((2, 3, 1, 64), 0.5, device=device, dtype=working(device))
    lengths = torch.tensor([1, 3], dtype=torch.int32, device=device)
    o, lse, *_ = fa2.flash_attn_with_kvcache(q, *cache, cache_seqlens=lengths, return_softmax_lse=True)
    near(o, torch.full(o.shape, 0.5), 1e-6 if device == "cpu" else 5e-4)
    near(lse, torch.tensor([2.0, 2 + math.log(3)])[:, None, None].expand(2, 1, 3), 1e-5)


def test_scales_of_zero_and_below(device):
    """0 is a number, not a default: uniform weights. A negative scale masks no worse."""
    q, k = (torch.randn(1, 4, 1, 8, device=device).to(working(device)) * 100 for _ in "qk")
    v = torch.arange(4.0, device=device).to(q.dtype)[None, :, None, None].expand(1, 4, 1, 8).contiguous()
    o, lse = tessera.attention(q, k, v, causal=True, scale=0.0, return_lse=True)
    near(o[0, :, 0, 0], [0, 0.5, 1, 1.5], 1e-6 if device == "cpu" else 1e-3)
    near(lse[0, 0], [math.log(i + 1) for i in range(4)], 1e-5)
    q, k = torch.zeros_like(q), torch.zeros_like(k)
    q[..., 0], k[..., 0] = 1, v[..., 0]
    o, lse = tessera.attention(q[:, :1], k, v, scale=-1.0, return_lse=True)
    near(o[0, 0, 0, :1], [0.507347], 1e-6 if device == "cpu" else 1e-3)
    near(lse[0, 0], [0.440190], 1e-5)
    o, *_ = fa2.flash_attn_with_kvcache(q[:, :1], k, v, cache_seqlens=2, softmax_scale=-1.0, return_softmax_lse=True)
    near(o[0, 0, 0, :1], [0.268941], 1e-6 if device == "cpu" else 1e-3)
    for scale in (math.inf, math.nan):
        with pytest.raises(ValueError, match="scale"):
            tessera.attention(q, k, v, scale=scale)


def test_a_nan_stays_in_its_row(device):
    q, k, v = operands(device, seqlen_q=16, seqlen_k=16, heads_kv=4, dim=8)
    clean, clean_lse = tessera.attention(q, k, v, return_lse=True)
    q[0, 3, 1] = math.nan
    o, lse = tessera.attention(q, k, v, return_lse=True)
    assert o[0, 3, 1].isnan().all() and lse[0, 1, 3].isnan()
    o[0, 3, 1], lse[0, 1, 3] = clean[0, 3, 1], clean_lse[0, 1, 3]
    assert torch.equal(o, clean) and torch.equal(lse, clean_lse)
    q, k, v = operands(device, seqlen_q=16, seqlen_k=16, heads_kv=4, dim=8)
    v[0, 5, 1, 2] = math.nan
    o = tessera.attention(q, k, v)
    assert o[0, :, 1, 2].isnan().all()
    o[0, :, 1, 2] = clean[0, :, 1, 2]
    assert torch.equal(o, clean)


@pytest.mark.parametrize("place", [(0, 1, 2), (2,)], ids=["all", "v"])
def test_a_last_stride_that_is_not_1(device, place):
    """Refused by name, and by the calls that promise torch's manners taken; never read wrongly."""
    q, k, v = operands(device, seqlen_q=33, seqlen_k=33, heads_kv=4, dim=40)
    parts = [x.transpose(1, 3).contiguous().transpose(1, 3) if i in place else x for i, x in enumerate((q, k, v))]
    with pytest.raises((ValueError, NotImplementedError), match=rf"{'qkv'[place[0]]}.*stride"):
        tessera.attention(*parts)
    right = tessera.attention(q, k, v)
    near(tessera.sdpa(*(x.transpose(1, 2) for x in parts)).transpose(1, 2), right.double(), 2e-3)
    near(fa3.flash_attn_func(*parts), right.double(), 2e-3)


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_a_pointer_off_by_one_element(device, name):
    """Right or refused by name, and the next call works."""
    plain = dict(zip("qkv", operands(device, batch=1, seqlen_q=65, seqlen_k=65, heads_q=2, dim=64)))
    x = plain[name]
    off = torch.empty(x.numel() + 1, device=device, dtype=x.dtype)[1:].view(x.shape).copy_(x)
    right = tessera.attention(**plain)
    try:
        near(tessera.attention(**{**plain, name: off}), right.double(), 2e-3)
    except (ValueError, NotImplementedError) as error:
        assert device == "cuda" and name in str(error) and "16" in str(error)
    assert torch.equal(tessera.attention(**plain), right)


def test_a_reversed_sequence(rng):
    q, k, v = rng.standard_normal((3, 1, 9, 2, 16))
    with pytest.raises(ValueError, match="k.*stride.*-"):
        tessera.attention(q, k[:, ::-1], v)
    assert np.isfinite(tessera.attention(q, k, v)).all()


@pytest.mark.parametrize("heads", [(33, 2, 2), (3, 2, 2), (2, 4, 4), (4, 0, 0), (8, 3, 3), (4, 4, 2)], ids=str)
def test_head_counts_that_do_not_divide(device, heads):
    q, k, v = (torch.zeros(1, 3, n, 16, device=device, dtype=working(device)) for n in heads)
    for call in (tessera.attention, fa2.flash_attn_func, fa3.flash_attn_func):
        with pytest.raises(ValueError, match=rf"{heads[0]}.*{heads[1]}|heads {heads[2]}, but k has {heads[1]}"):
            call(q, k, v)


@pytest.mark.parametrize("p", [0.17, 1.0, -0.1])
def test_dropout_is_refused_and_none_is_none(device, p):
    q, k, v = operands(device, seqlen_q=53, heads_kv=4)
    heads_first = [x.transpose(1, 2) for x in (q, k, v)]
    with pytest.raises(NotImplementedError, match=f"dropout_p: {p}"):
        fa2.flash_attn_func(q, k, v, p)
    with pytest.raises(NotImplementedError, match=f"dropout_p: {p}"):
        tessera.sdpa(*heads_first, dropout_p=p)
    assert torch.equal(fa2.flash_attn_func(q, k, v, 0.0), tessera.attention(q, k, v))
    assert torch.equal(tessera.sdpa(*heads_first, dropout_p=0.0), tessera.sdpa(*heads_first))


def test_one_length_for_all_sequences_over_pages(device):
    """A number is expanded to the batch, not to the pages."""
    q = torch.randn(3, 1, 4, 32, device=device).to(working(device))
    pages = [torch.randn(40, 16, 2, 32, device=device).to(q.dtype) for _ in "kv"]
    table = torch.randperm(40, device=device)[:18].view(3, 6).int()
    one = fa2.flash_attn_with_kvcache(q, *pages, cache_seqlens=77, block_table=table)
    each = torch.full((3,), 77, dtype=torch.int32, device=device)
    assert torch.equal(one, fa2.flash_attn_with_kvcache(q, *pages, cache_seqlens=each, block_table=table))
    wide = torch.full((40,), 77, dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match=r"cache_seqlens: shape \[40\].*\b3\b"):
        fa2.flash_attn_with_kvcache(q, *pages, cache_seqlens=wide, block_table=table)


def test_lse_is_as_long_as_the_queries(device):
    for length in (1, 63, 65, 127, 129):
        q, k, v = operands(device, seqlen_q=length, dim=64)
        o, lse = tessera.attention(q, k, v, return_lse=True)
        assert lse.shape == (2, 4, length) and lse.dtype is torch.float32 and lse.is_contiguous()
        judge(o, q, k, v, lse)


def test_the_gradient_of_lse_alone(device):
    """d_o = 0 and d_lse = 1: dq is the weights' mean of the keys, dv nothing."""
    q, k, v = (x.requires_grad_() for x in operands(device, heads_kv=4))
    o, lse = tessera.attention(q, k, v, return_lse=True)
    dq, dk, dv = torch.autograd.grad((o, lse), (q, k, v), (torch.zeros_like(o), torch.ones_like(lse)))
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    right = torch.autograd.grad(textbook(*wide)[1].sum(), wide[:2])
    for found, expected in zip((dq, dk), right):
        near(found, expected, 1e-5 if device == "cpu" else 3e-3)
    assert not dv.any()


def test_lengths_of_another_type_or_place(device):
    q, k, v = (x[0] for x in operands(device, batch=1, seqlen_q=53))
    cu = torch.tensor([0, 20, 53], dtype=torch.int32, device=device)
    for name, wrong in (("cu_seqlens_q", cu.long()), ("cu_seqlens_k", cu.float())):
        lengths = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, name: wrong}
        with pytest.raises(ValueError, match=rf"{name}: dtype"):
            fa2.flash_attn_varlen_func(q, k, v, **lengths, max_seqlen_q=33, max_seqlen_k=33)
    if device == "cuda":
        with pytest.raises(ValueError, match="cu_seqlens_q: on"):
            fa2.flash_attn_varlen_func(q, k, v, cu.cpu(), cu, 33, 33)
    with pytest.raises(ValueError, match="k.*dtype"):
        tessera.attention(q[None], k[None].to(torch.float16 if q.dtype is torch.float32 else torch.bfloat16), v[None])


def test_an_output_that_is_an_input_or_overlaps_itself(device):
    """Refused by name, or right: the plan may write where q lies."""
    q, k, v = operands(device, seqlen_q=53, heads_kv=4)
    right = tessera.attention(q, k, v)
    plan = tessera.plan(q, k, v)
    memory = None
    if device == "cuda" and plan.workspace_bytes:
        memory = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=device)
    both = q.clone()
    try:
        plan.run(q=both, k=k, v=v, o=both, workspace=memory)
    except ValueError as error:
        assert "o" in str(error) and "q" in str(error) and torch.equal(both, q)
    else:
        assert torch.equal(both, right)
    with pytest.raises(ValueError, match="o.*stride"):
        plan.run(q=q, k=k, v=v, o=torch.empty(1, 1, 4, 32, device=device, dtype=q.dtype).expand(2, 53, 4, 32))
