"""PyTorch: direct calls, the registered op under autograd, autocast, opcheck, torch.compile and CUDA graphs."""

from itertools import permutations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: NumPy has no bfloat16 without it")

from torch_help import dtypes, judge, need, operands, textbook, textbook_backward, working  # noqa: E402

import tessera  # noqa: E402
from tessera import _torch, _torch_ops  # noqa: E402
from tessera._call import EXTRAS  # noqa: E402

OP = torch.ops.tessera.attention.default
BACKWARD = tessera.supports("bwd f64 sq8 d16 cpu")


def arguments(q, k, v, causal=False, **extras):
    return (
        q,
        k,
        v,
        *(extras.get(n) for n in EXTRAS),
        None,
        None,
        -1,
        0 if causal else -1,
        False,
        None,
        0.0,
        0,
        0,
        False,
    )


@pytest.fixture(params=["kernels", "textbook"])
def gradients(request, monkeypatch):
    """The library's own backward where a kernel computes it; and the plumbing around it, held to the textbook."""
    if request.param == "textbook":
        monkeypatch.setattr(_torch_ops, "run_backward", textbook_backward)
    elif not BACKWARD:
        pytest.skip(f"no kernel computes gradients: {BACKWARD.reasons.splitlines()[0]}")


OPTIONS = {
    "plain": {},
    "causal": dict(causal=True),
    "window": dict(window=(7, 3)),
    "scale and softcap": dict(scale=0.3, softcap=2.0),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_direct_and_op_agree_with_the_judge(device, options):
    for dtype in dtypes(device):
        q, k, v = operands(device, dtype)
        o, lse = tessera.attention(q, k, v, return_lse=True, **options)
        assert o.dtype is dtype and o.is_contiguous() and o.device == q.device
        judge(o, q, k, v, lse, **options)
        with torch.autocast(device, enabled=False):
            again = tessera.attention(q.requires_grad_(), k, v, **options)
        assert again.requires_grad and torch.equal(again, o)


def test_masks_slopes_and_sinks(device):
    q, k, v = operands(device)
    extras = dict(
        bias=torch.randn(2, 1, 37, 53, device=device),
        sinks=torch.randn(4, device=device),
        alibi_slopes=torch.rand(2, 4, device=device),
    )
    judge(tessera.attention(q, k, v, **extras), q, k, v, **extras)
    mask = (torch.rand(2, 1, 1, 53, device=device) < 0.5).expand(2, 4, 37, 53)
    judge(tessera.attention(q, k, v, bias=mask), q, k, v, bias=mask)


def test_a_pin_is_seen_by_calls_that_are_remembered(monkeypatch):
    q = torch.randn(1, 300, 8, 64)
    tessera.attention(q, q, q)
    first = tessera.which().kernel
    monkeypatch.setenv("TESSERA_KERNEL", "cpu.portable.*")
    tessera.attention(q, q, q)
    assert tessera.which().kernel == "cpu.portable.forward"
    monkeypatch.delenv("TESSERA_KERNEL")
    tessera.attention(q, q, q)
    assert tessera.which().kernel == first


def test_int8_keys_and_values():
    q, k, v = operands(seqlen_q=2)
    scales = [x.abs().amax(-1) / 127 for x in (k, v)]
    k8, v8 = (torch.round(x / s[..., None]).to(torch.int8) for x, s in zip((k, v), scales))
    k, v = (x.float() * s[..., None] for x, s in zip((k8, v8), scales))
    o = tessera.attention(q, k8, v8, causal=True, k_scale=scales[0], v_scale=scales[1])
    judge(o, q, k, v, causal=True)
    flat = OP(*arguments(q, k8, v8, causal=True, k_scale=scales[0], v_scale=scales[1]))[0]
    assert torch.equal(flat, o)


def test_strides_offsets_and_equal_keys(device):
    """Views that differ in nothing but strides or alignment get plans of their own."""
    base = torch.randn(2, 40, 3, 4, 32, device=device).to(working(device))
    for q, k, v in (base.unbind(2), base.transpose(1, 3).contiguous().transpose(1, 3).unbind(2), base[:, :8].unbind(2)):
        judge(tessera.attention(q, k, v, causal=True), q, k, v, causal=True)
    if device == "cpu":  # the GPU rows refuse rows off 16 bytes
        odd = torch.randn(2 * 9 * 4 * 16 + 1)[1:].view(2, 9, 4, 16)
        judge(tessera.attention(odd, odd, odd), odd, odd, odd)


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_operands_of_three_layouts(device, order):
    """q, k and v each stored their own way, [batch, seqlen, heads, dim] to the eye: bitwise as if contiguous."""
    stored = [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3)]
    plain = operands(device, seqlen_q=53, heads_kv=4)
    back = [tuple(sorted(range(4), key=lambda i: stored[j][i])) for j in order]
    q, k, v = (x.permute(stored[j]).contiguous().permute(b) for x, j, b in zip(plain, order, back))
    assert torch.equal(tessera.attention(q, k, v, causal=True), tessera.attention(*plain, causal=True))


def test_many_threads_take_turns_with_the_structs():
    from concurrent.futures import ThreadPoolExecutor

    cases = [operands(seed=i) for i in range(4)]
    expected = [tessera.attention(*c, causal=True) for c in cases]

    def work(i):
        return all(torch.equal(tessera.attention(*cases[i % 4], causal=True), expected[i % 4]) for _ in range(50))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_an_error_leaves_the_next_call_right():
    q, k, v = operands(batch=1, seqlen_q=4, seqlen_k=4)
    cu = torch.tensor([0, 3, 2, 4], dtype=torch.int32)
    packed = [x[0] for x in (q, k, v)]
    chosen = (-1, -1, None, 0.0, True, False, 0, 0, False)
    for _ in range(2):
        with pytest.raises(ValueError, match="cu_seqlens_q"):
            _torch.forward(*packed, chosen, {"cu_seqlens_q": cu, "cu_seqlens_k": cu}, (4, 4))
        good = torch.tensor([0, 1, 3, 4], dtype=torch.int32)
        o, _ = _torch.forward(*packed, chosen, {"cu_seqlens_q": good, "cu_seqlens_k": good}, (4, 4))
        judge(o[None, 1:3], q[:, 1:3], k[:, 1:3], v[:, 1:3])


def test_tensors_that_are_not_plain_memory():
    q, k, v = operands()
    negative = torch.complex(torch.zeros_like(q), q).conj().imag
    assert negative.is_neg()
    with pytest.raises(ValueError, match="q: a sparse or lazily negated"):
        tessera.attention(negative, k, v)
    with pytest.raises((ValueError, NotImplementedError, RuntimeError), match="(?i)sparse"):
        tessera.attention(q.to_sparse(), k, v)
    with pytest.raises(ValueError, match="k: on device meta"):
        tessera.attention(q, k.to("meta"), v)
    with pytest.raises(ValueError, match="o: read-only|missing"):
        tessera.plan(q, k, v).run(q=q, k=k, v=v)


@pytest.mark.parametrize("case", ["plain", "causal", "bias", "mask", "sinks", "lse"])
def test_gradcheck(gradients, case):
    q, k, v = (x.requires_grad_() for x in operands(dtype=torch.float64, batch=1, seqlen_q=5, seqlen_k=7, dim=8))
    options = dict(causal=case == "causal", return_lse=True)
    inputs = [q, k, v]
    if case == "bias":
        inputs.append(torch.randn(1, 4, 1, 7, dtype=torch.float64).requires_grad_())
    if case == "mask":
        options["bias"] = torch.rand(5, 7) < 0.8
        options["bias"][:, 0] = True

    def call(q, k, v, bias=None):
        if bias is not None:
            options["bias"] = bias
        o, lse = tessera.attention(q, k, v, **options)
        return (o, lse) if case == "lse" else o

    if case == "sinks":  # float32 is too coarse for differences, so held to the textbook's gradient
        sinks = torch.randn(4).requires_grad_()
        o, lse = tessera.attention(q, k, v, sinks=sinks, return_lse=True)
        found = torch.autograd.grad((o.sin().sum() + lse.cos().sum()), (q, k, v, sinks))
        o, lse = textbook(q, k, v, sinks=sinks)
        for a, b in zip(found, torch.autograd.grad((o.sin().sum() + lse.cos().sum()), (q, k, v, sinks))):
            assert torch.allclose(a, b, atol=1e-6)
        return
    assert torch.autograd.gradcheck(call, inputs)


@pytest.mark.skipif(not BACKWARD, reason="no kernel computes gradients")
def test_gradients_of_a_split_forward_pass():
    """num_splits belongs to the forward pass: its gradient takes none."""
    from tessera.compat.flash_attn_interface import flash_attn_func

    q, k, v = operands(dtype=torch.float32, batch=1, seqlen_q=3, seqlen_k=300, dim=16)
    found = []
    for splits in (1, 3):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        flash_attn_func(*leaves, num_splits=splits).square().sum().backward()
        found.append([x.grad for x in leaves])
    for whole, split in zip(*found):
        assert torch.allclose(whole, split, atol=1e-5)


def test_gradients_of_one_tensor_in_three_places(gradients):
    """q is k is v, used twice, and backward run twice: nothing saved is lost or counted once too few."""
    x = torch.randn(1, 6, 2, 8, dtype=torch.float64).requires_grad_()
    total = tessera.attention(x, x, x, causal=True).square().sum() + tessera.attention(x, x, x).sum()
    (first,) = torch.autograd.grad(total, x, retain_graph=True)
    (second,) = torch.autograd.grad(total, x)
    expected = textbook(x, x, x, causal=True)[0].square().sum() + textbook(x, x, x)[0].sum()
    (right,) = torch.autograd.grad(expected, x)
    assert torch.equal(first, second) and torch.allclose(first, right, atol=1e-10)


def test_gradients_that_nothing_computes():
    q, k, v = operands()
    o = tessera.attention(q.requires_grad_(), k, v)
    if not BACKWARD:
        with pytest.raises(NotImplementedError, match="(?s)the gradient of attention.*forward"):
            o.sum().backward()
    slopes = torch.rand(4).requires_grad_()
    with pytest.raises(NotImplementedError, match="alibi_slopes: requires a gradient"):
        tessera.attention(q, k, v, alibi_slopes=slopes).sum().backward()


def test_second_derivatives_are_refused(gradients):
    q, k, v = operands(dtype=torch.float64, batch=1, seqlen_q=4, seqlen_k=4)
    q.requires_grad_()
    (grad,) = torch.autograd.grad(tessera.attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivative"):
        grad.sum().backward()


@pytest.mark.parametrize("amp", [torch.bfloat16, torch.float16])
def test_autocast(device, amp):
    q, k, v = operands(device, torch.float32)
    with torch.autocast(device, amp):
        o = tessera.attention(q, k, v)
        halves = [x.to(amp) for x in (q, k, v)]
        assert o.dtype is amp and torch.equal(o, tessera.attention(*halves))
        biased = tessera.attention(q, k, v, bias=torch.zeros(37, 53, device=device))
        assert torch.equal(biased, tessera.attention(*halves, bias=torch.zeros(37, 53, device=device)))
    if device == "cpu":
        assert tessera.attention(q, k, v).dtype is torch.float32
        with torch.autocast("cpu", amp):
            assert tessera.attention(*(x.double() for x in (q, k, v))).dtype is torch.float64


@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(device, grad, monkeypatch):
    monkeypatch.setattr(_torch_ops, "run_backward", textbook_backward)
    q, k, v = operands(device, batch=1, seqlen_q=5, seqlen_k=7)
    if grad:
        q.requires_grad_(), k.requires_grad_()
    torch.library.opcheck(OP, arguments(q, k, v, causal=True))
    torch.library.opcheck(OP, arguments(q, k, v, bias=torch.zeros(1, 1, 5, 7, device=device)))


def test_fake_kernels_of_every_layout():
    cu = torch.tensor([0, 2, 5], dtype=torch.int32)
    table = torch.tensor([[1, 0], [2, 3]], dtype=torch.int32)
    used = torch.tensor([5, 9], dtype=torch.int32)
    q, cache = torch.randn(5, 4, 16), torch.randn(4, 8, 2, 16)
    dense = torch.randn(2, 3, 4, 16)
    calls = [
        (q, q, q, dict(cu_seqlens_q=cu, cu_seqlens_k=cu), (3, 3)),
        (dense, cache, cache, dict(page_table=table, seqused_k=used), (None, None)),
        (q, cache, cache, dict(cu_seqlens_q=cu, page_table=table, seqused_k=used), (3, None)),
    ]
    for q, k, v, extras, longest in calls:
        args = list(arguments(q, k, v, **extras))
        args[3 + len(EXTRAS) : 5 + len(EXTRAS)] = longest
        torch.library.opcheck(OP, tuple(args), test_utils=("test_schema", "test_faketensor"))


class _Layer(torch.nn.Module):
    def __init__(self, width=64, heads=4):
        super().__init__()
        self.qkv, self.out, self.heads = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width), heads

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        return x + self.out(tessera.attention(q, k, v, causal=True, window=(15, 0)).flatten(-2))


def test_compile_of_four_layers_has_no_graph_break(device):
    model = torch.nn.Sequential(*(_Layer() for _ in range(4))).to(device, working(device))
    x = torch.randn(2, 24, 64, device=device, dtype=working(device))
    backend = "inductor" if device == "cuda" else "aot_eager"  # the CPU's needs a compiler and minutes
    torch._dynamo.reset()
    with torch.no_grad(), tessera.expect_kernel(f"{'cuda' if device == 'cuda' else 'cpu'}.*") as scope:
        expected = model(x)
        compiled = torch.compile(model, fullgraph=True, backend=backend)
        assert torch.allclose(compiled(x), expected, atol=1e-2 if device == "cuda" else 1e-5)
        assert torch.allclose(compiled(x[:, :11]), model(x[:, :11]), atol=1e-2 if device == "cuda" else 1e-5)
    assert len(scope.ran) == 16
    assert torch._dynamo.explain(model)(x).graph_break_count == 0


def test_compiled_training_step(monkeypatch):
    monkeypatch.setattr(_torch_ops, "run_backward", _textbook_window_backward)
    torch._dynamo.reset()
    model, x = _Layer().double(), torch.randn(1, 12, 64, dtype=torch.float64)
    model(x).square().sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    torch.compile(model, fullgraph=True, backend="aot_eager")(x).square().sum().backward()
    for p, grad in zip(model.parameters(), expected):
        assert torch.allclose(p.grad, grad, atol=1e-9)


def _textbook_window_backward(arrays, chosen, longest):
    assert chosen[:2] == (15, 0) and arrays["q"].shape[1] <= 16  # the window hides nothing here
    textbook_backward(arrays, (-1, *chosen[1:]), longest)


class TestCudaGraphs:
    @pytest.fixture(autouse=True)
    def _device(self):
        need("cuda")

    def test_a_captured_call_follows_its_inputs(self):
        q, k, v = operands("cuda")
        used = torch.tensor([53, 20], dtype=torch.int32, device="cuda")
        chosen = (-1, 0, None, 0.0, True, False, 0, 0, False)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            _torch.forward(q, k, v, chosen, {"seqused_k": used})
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o, lse = OP(*arguments(q, k, v, causal=True, seqused_k=used))
        for seed, length in ((3, 53), (4, 40)):
            for x, new in zip((q, k, v), operands("cuda", seed=seed)):
                x.copy_(new)
            used.fill_(length)
            o.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            judge(o, q, k[:, :length], v[:, :length], lse, causal=True)

    @pytest.mark.parametrize("lengths", [None, [4000, 17]], ids=["whole", "looked up"])
    def test_decode_waits_for_the_call_before_it(self, lengths):
        # A launch of decode begins while the one before it ends: each takes the output of the one before as its query.
        q, k, v = operands("cuda", seqlen_q=1, seqlen_k=4096, heads_q=8, heads_kv=2, dim=128)
        k, v = k * 3, v * 8  # else all outputs of a chain are the same mean
        used = {} if lengths is None else {"seqused_k": torch.tensor(lengths, dtype=torch.int32, device="cuda")}
        step = lambda x: OP(*arguments(x, k, v, **used))[0]

        def chain(between):
            x = q
            for _ in range(50):
                x = step(x)
                between()
            return x

        expected = chain(torch.cuda.synchronize)
        assert not torch.equal(expected, step(q))
        for _ in range(20):
            assert torch.equal(chain(lambda: None), expected)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x = chain(lambda: None)
        for _ in range(20):
            x.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(x, expected)

    def test_runs_on_the_current_stream(self):
        q, k, v = operands("cuda", batch=1, seqlen_q=512, seqlen_k=512)
        expected = tessera.attention(q, k, v)
        late = torch.zeros_like(q)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            late.copy_(q)  # only a run behind it on the same stream sees it
            o = tessera.attention(late, k, v)
        stream.synchronize()
        assert torch.equal(o, expected)
