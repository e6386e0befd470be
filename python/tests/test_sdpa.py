"""sdpa() beside torch's own, and torch's own with our kernels behind it."""

import inspect

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: NumPy has no bfloat16 without it")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch_help import working  # noqa: E402

import tessera  # noqa: E402
from tessera import _torch_ops  # noqa: E402

F = torch.nn.functional


def operands(device="cpu", lead=(2,), heads=(4, 4), lengths=(9, 13), dim=32, dtype=None):
    generator = torch.Generator().manual_seed(3)
    shapes = [(*lead, heads[0], lengths[0], dim)] + [(*lead, heads[1], lengths[1], dim)] * 2
    return [torch.randn(s, generator=generator).to(device, dtype or working(device)) for s in shapes]


def same(o, q, k, v, *mask, **options):
    """o against torch's math in float64, with the tolerance of o's own dtype."""
    mask = [m if m is None or m.dtype is torch.bool else m.double() for m in mask]
    with sdpa_kernel(SDPBackend.MATH):
        expected = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), *mask, **options)
    assert o.shape == expected.shape and o.dtype is q.dtype
    slack = {torch.float64: 1e-13, torch.float32: 3e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}[o.dtype]
    assert (o.double() - expected).abs().max() <= slack * max(1, expected.abs().max())


def test_the_signature_is_that_of_torch():
    found = inspect.signature(tessera.sdpa).parameters.values()
    text = ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in found)
    published = F.scaled_dot_product_attention.__doc__.split("(", 1)[1].split(")", 1)[0]
    expected = "query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False"
    assert text == expected == " ".join(published.split())


CASES = {
    "plain": {},
    "causal": dict(is_causal=True),
    "scale": dict(scale=0.2),
    "scale 0": dict(scale=0.0),
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("lengths", [(9, 13), (13, 9), (1, 7), (8, 8)], ids=str)
def test_causal_is_top_left(device, options, lengths):
    q, k, v = operands(device, lengths=lengths)
    same(tessera.sdpa(q, k, v, **options), q, k, v, **options)


MASKS = [(13,), (9, 13), (9, 1), (1, 13), (4, 9, 13), (2, 1, 9, 13), (2, 4, 1, 13), (1, 1, 9, 1), (2, 4, 9, 13)]


@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_masks_broadcast(device, shape):
    q, k, v = operands(device)
    added = torch.randn(shape, device=device).to(q.dtype)
    same(tessera.sdpa(q, k, v, added), q, k, v, added)
    kept = torch.rand(shape, device=device) < 0.6
    kept[..., 0] = True
    same(tessera.sdpa(q, k, v, kept), q, k, v, kept)


def test_transposed_masks_and_rows_without_a_key(device):
    q, k, v = operands(device)
    mask = torch.randn(13, 9, device=device).to(q.dtype).t()
    same(tessera.sdpa(q, k, v, mask), q, k, v, mask)
    kept = torch.ones(9, 13, dtype=torch.bool, device=device)
    kept[4] = False
    o = tessera.sdpa(q, k, v, kept)
    assert torch.all(o[:, :, 4] == 0) and torch.all(torch.isfinite(o))


def test_grouped_heads(device):
    q, k, v = operands(device, heads=(6, 2))
    same(tessera.sdpa(q, k, v, enable_gqa=True, is_causal=True), q, k, v, enable_gqa=True, is_causal=True)
    with pytest.raises(ValueError, match="6, 2 and 2 heads"):
        tessera.sdpa(q, k, v)
    with pytest.raises(ValueError, match="enable_gqa.*6, 4 and 4"):
        tessera.sdpa(q, *operands(device, heads=(6, 4))[1:], enable_gqa=True)
    q, k, v = operands(device, heads=(6, 1))
    same(tessera.sdpa(q, k, v), q, k, v)


@pytest.mark.parametrize("lead", [(), (3, 2), (2, 1, 3)], ids=str)
def test_leading_dimensions(device, lead):
    q, k, v = operands(device, lead=lead)
    o = tessera.sdpa(q, k, v)
    same(o, q, k, v)
    if lead == (3, 2):
        mask = torch.randn(3, 1, 1, 9, 13, device=device).to(q.dtype)
        same(tessera.sdpa(q, k, v, mask), q, k, v, mask)
        same(tessera.sdpa(q, k[:1], v[:1]), q, k[:1].expand_as(k), v[:1].expand_as(v))
    if lead == ():
        same(tessera.sdpa(q[0], k[0], v[0]), q[0], k[0], v[0])


def test_causal_biases_of_torch(device):
    from torch.nn.attention.bias import causal_lower_right, causal_upper_left

    q, k, v = operands(device)
    corner = torch.ones(9, 13, dtype=torch.bool, device=device)
    for make, shift in ((causal_upper_left, 0), (causal_lower_right, 4)):
        same(tessera.sdpa(q, k, v, make(9, 13)), q, k, v, corner.tril(shift))


def test_what_is_not_done_is_said():
    q, k, v = operands()
    with pytest.raises(NotImplementedError, match="dropout_p: 0.1"):
        tessera.sdpa(q, k, v, dropout_p=0.1)
    with pytest.raises(ValueError, match="is_causal"):
        tessera.sdpa(q, k, v, torch.ones(9, 13, dtype=torch.bool), is_causal=True)
    with pytest.raises(ValueError, match=r"attn_mask: shape \[9, 12\]"):
        tessera.sdpa(q, k, v, torch.ones(9, 12, dtype=torch.bool))
    with pytest.raises(TypeError, match="key"):
        tessera.sdpa(q, None, v)
    with pytest.raises(ValueError, match="query: shape"):
        tessera.sdpa(q[0, 0, 0], k, v)


@pytest.fixture
def enabled():
    sentence = tessera.enable_sdpa()
    yield sentence
    tessera.disable_sdpa()


class TestBehindTorch:
    def test_says_so(self, enabled):
        assert "FLASH_ATTENTION" in enabled and torch.__version__ in enabled
        assert tessera.enable_sdpa() == enabled
        if hasattr(torch.nn.attention, "current_flash_attention_impl"):
            assert torch.nn.attention.current_flash_attention_impl() == "tessera"

    @pytest.mark.parametrize("options", [{}, dict(is_causal=True), dict(scale=0.3)], ids=str)
    def test_the_usual_way_to_force_it(self, enabled, device, options):
        lengths = (13, 13) if device == "cuda" and "is_causal" in options else (9, 13)
        q, k, v = operands(device, lengths=lengths)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION), tessera.expect_kernel(f"{device}.*") as scope:
            o = F.scaled_dot_product_attention(q, k, v, **options)
        assert len(scope.ran) == 1
        same(o, q, k, v, **options)

    def test_masks_on_the_cpu(self, enabled):
        q, k, v = operands()
        for mask in (torch.randn(9, 13), torch.rand(2, 4, 9, 13) < 0.7, torch.randn(2, 1, 9, 13)):
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION), tessera.expect_kernel("cpu.*"):
                o = F.scaled_dot_product_attention(q, k, v, mask)
            same(o, q, k, v, mask)

    def test_compiled(self, enabled, device):
        q, k, v = operands(device, lengths=(13, 13))
        torch._dynamo.reset()
        backend = "inductor" if device == "cuda" else "aot_eager"
        call = torch.compile(
            lambda *x: F.scaled_dot_product_attention(*x, is_causal=True), fullgraph=True, backend=backend
        )
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION), tessera.expect_kernel(f"{device}.*"):
            o = call(q, k, v)
        same(o, q, k, v, is_causal=True)

    def test_gradients_never_come_from_elsewhere(self, enabled, device, monkeypatch):
        seen = []
        monkeypatch.setattr(_torch_ops, "run_backward", lambda arrays, *_: seen.append(sorted(arrays)))
        q, k, v = operands(device, lengths=(13, 13))
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            F.scaled_dot_product_attention(q.requires_grad_(), k, v, is_causal=True).sum().backward()
        assert seen == [["d_o", "dk", "dq", "dv", "k", "lse", "o", "q", "v"]]

    def test_dropout_is_refused(self, enabled, device):
        if device == "cpu":
            q, k, v = operands()
            with pytest.raises(NotImplementedError, match="dropout_p"):
                torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.1)
        else:
            q, k, v = operands(device)
            with pytest.raises(NotImplementedError, match="dropout_p"), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)

    def test_torch_gets_its_own_back(self, device):
        q, k, v = operands(device)
        tessera.enable_sdpa()
        tessera.disable_sdpa()
        with pytest.raises(tessera.UnexpectedKernel, match="no kernel of this library ran"):
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION), tessera.expect_kernel("*"):
                F.scaled_dot_product_attention(q, k, v)
        tessera.disable_sdpa()
