"""torch.ops.tessera.attention and its backward: what torch.compile, autograd, autocast and opcheck see of this library.

Both ops run the kernels of forward() and of a backward Plan; their fake kernels know shapes only. Schemas are flat:
every option is a number, every optional array a Tensor?. lse is differentiable. A gradient that no kernel computes is a
NotImplementedError at the time of backward, with each kernel's reason.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

from . import _c, _torch
from ._call import EXTRAS, describe, fill, pin, remember
from ._problem import Plan

Tensor = torch.Tensor
_OPTIONS = (
    "SymInt? max_seqlen_q, SymInt? max_seqlen_k, int left, int right, bool top_left, float? scale, float softcap, "
    "int num_splits, int sm_margin, bool deterministic"
)
_ARRAYS = "Tensor q, Tensor k, Tensor v, " + ", ".join(f"Tensor? {name}" for name in EXTRAS)
_FIRST_OPTION = 3 + len(EXTRAS)
_TAGS = [getattr(torch.Tag, name) for name in ("pt2_compliant_tag", "needs_exact_strides") if hasattr(torch.Tag, name)]

_library = torch.library.Library("tessera", "DEF")
_library.define(f"attention({_ARRAYS}, {_OPTIONS}) -> (Tensor o, Tensor lse)", tags=_TAGS)
_library.define(
    f"attention_backward(Tensor d_o, Tensor? d_lse, Tensor o, Tensor lse, {_ARRAYS}, {_OPTIONS}, bool need_d_bias, "
    "bool need_d_sinks) -> (Tensor dq, Tensor dk, Tensor dv, Tensor d_bias, Tensor d_sinks)",
    tags=_TAGS,
)
_op = torch.ops.tessera.attention.default
_backward_op = torch.ops.tessera.attention_backward.default


def _parts(arguments: tuple, return_lse: bool = True) -> tuple:
    """(q, k, v, extras, longest, options) of the flat arguments of an op, from q on."""
    q, k, v = arguments[:3]
    extras = {name: x for name, x in zip(EXTRAS, arguments[3:_FIRST_OPTION]) if x is not None}
    max_q, max_k, left, right, top_left, scale, softcap, splits, margin, deterministic = arguments[_FIRST_OPTION:]
    chosen = (left, right, scale, softcap, return_lse, top_left, splits, margin, deterministic)
    return q, k, v, extras, (max_q, max_k), chosen


def attention(
    q: Tensor, k: Tensor, v: Tensor, chosen: tuple, extras: dict[str, Tensor], longest: tuple
) -> tuple[Tensor, Tensor]:
    """The op with the arguments of _torch.forward()."""
    left, right, scale, softcap, _, top_left, splits, margin, deterministic = chosen
    flat = [extras.get(name) for name in EXTRAS]
    return _op(q, k, v, *flat, *longest, left, right, top_left, scale, softcap, splits, margin, deterministic)


def _forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    q, k, v, extras, longest, chosen = _parts(arguments)
    return _torch.forward(q, k, v, chosen, extras, longest)


def _forward_fake(*arguments: Any) -> tuple[Tensor, Tensor]:
    q, _, v, extras, _, _ = _parts(arguments)
    o = q.new_empty((*q.shape[:-1], v.shape[-1]))
    lse = (q.shape[1], q.shape[0]) if "cu_seqlens_q" in extras else (q.shape[0], q.shape[2], q.shape[1])
    return o, q.new_empty(lse, dtype=torch.float64 if q.dtype is torch.float64 else torch.float32)


_backward_plans: dict[tuple, Plan] = {}


def _backward_plan(arrays: dict[str, Tensor], chosen: tuple, names: tuple[str, ...], longest: tuple) -> Plan:
    """The plan of a backward run on these arrays; NotImplementedError with each kernel's reason where there is none."""
    key = (
        tuple((name, x.shape, x.stride(), x.dtype, x.device, x.data_ptr() & 15) for name, x in arrays.items()),
        chosen,
        longest,
        pin(),
        torch.are_deterministic_algorithms_enabled(),
    )
    plan = _backward_plans.get(key)
    if plan is None:
        views = {name: _torch.kind.view(x, name) for name, x in arrays.items()}
        extras = {name: views[name] for name in EXTRAS if name in views}
        problem = fill(views["q"], views["k"], views["v"], chosen, extras, longest)
        setattr(problem, "pass", _c.BACKWARD)
        if torch.are_deterministic_algorithms_enabled():
            problem.flags |= _c.FLAG_DETERMINISTIC
        problem.num_splits = 0  # how a forward pass was split changes nothing of its gradient
        for name in ("o", "d_o", "dq", "dk", "dv"):
            describe(problem, name, views[name])
        for name, flag in (("d_lse", _c.FLAG_D_LSE), ("d_bias", _c.FLAG_D_BIAS), ("d_sinks", _c.FLAG_D_SINKS)):
            problem.flags |= flag if name in names else 0
        if "d_bias" in names:
            problem.d_bias.dtype, problem.d_bias.align = problem.bias.dtype, views["d_bias"].align
            strides = views["d_bias"].strides("d_bias")
            full = (problem.batch, problem.heads_q, problem.seqlen_q, problem.seqlen_k)
            shape = (1,) * (4 - len(strides)) + tuple(views["d_bias"].shape)
            strides = (0,) * (4 - len(strides)) + strides
            problem.d_bias.stride[:] = [0 if n == 1 and m > 1 else s for n, m, s in zip(shape, full, strides)]
        try:
            plan = Plan(problem)
        except NotImplementedError as error:
            raise NotImplementedError(
                f"the gradient of attention: no kernel of this build computes it here ({error}); "
                "where none is wanted, call under torch.no_grad() or on detached tensors"
            ) from None
        remember(_backward_plans, key, plan)
    return plan


def _dense_rows(x: Tensor | None) -> Tensor | None:
    """An incoming gradient as the kernels take it, copied where need be: torch hands out expanded ones, whose last
    stride is 0, and slices, whose rows on CUDA do not start at multiples of 16 bytes."""
    if x is None:
        return x
    dense = x.stride(-1) == 1 or x.shape[-1] == 1 and 0 not in x.stride()
    if dense and x.is_cuda:
        steps = (n for n, size in zip(x.stride()[:-1], x.shape) if size > 1)
        dense = x.data_ptr() % 16 == 0 and all(n * x.element_size() % 16 == 0 for n in steps)
    return x if dense else x.contiguous()


def _backward(d_o: Tensor, d_lse: Tensor | None, o: Tensor, lse: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    *flat, need_d_bias, need_d_sinks = arguments
    q, k, v, extras, longest, chosen = _parts(tuple(flat))
    arrays = {"q": q, "k": k, "v": v, **extras, "o": o, "lse": lse, "d_o": _dense_rows(d_o)}
    if d_lse is not None:
        arrays["d_lse"] = d_lse.contiguous()
    for name, like in (("dq", q), ("dk", k), ("dv", v)):
        arrays[name] = like.new_empty(like.shape)
    if need_d_bias:
        arrays["d_bias"] = extras["bias"].new_empty(extras["bias"].shape)
    if need_d_sinks:
        arrays["d_sinks"] = extras["sinks"].new_empty(extras["sinks"].shape)
    run_backward(arrays, chosen, longest)
    none = q.new_empty(0)
    return (
        *(arrays[name] for name in ("dq", "dk", "dv")),
        arrays.get("d_bias", none),
        arrays.get("d_sinks", none.clone()),
    )


def run_backward(arrays: dict[str, Tensor], chosen: tuple, longest: tuple) -> None:
    """Fills the arrays dq, dk, dv and, where they are there, d_bias and d_sinks from the others."""
    with torch.no_grad():
        plan = _backward_plan(arrays, chosen, tuple(arrays), longest)
        workspace = None
        if plan.workspace_bytes and arrays["q"].is_cuda:
            workspace = arrays["q"].new_empty(plan.workspace_bytes, dtype=torch.uint8)
        plan.run(workspace=workspace, **arrays)


def _backward_fake(d_o: Tensor, d_lse: Tensor | None, o: Tensor, lse: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    *flat, need_d_bias, need_d_sinks = arguments
    q, k, v, extras, _, _ = _parts(tuple(flat))
    d_bias = extras["bias"].new_empty(extras["bias"].shape) if need_d_bias else q.new_empty(0)
    d_sinks = extras["sinks"].new_empty(extras["sinks"].shape) if need_d_sinks else q.new_empty(0)
    return (*(x.new_empty(x.shape) for x in (q, k, v)), d_bias, d_sinks)


class _Differentiable(torch.autograd.Function):
    """The op with its gradient. torch.library.register_autograd would do, at 110 us a call for a schema this long."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        o, lse = _below_autograd(keyset, arguments)
        ctx.save_for_backward(*arguments[:_FIRST_OPTION], o, lse)
        ctx.options = arguments[_FIRST_OPTION:]
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> tuple:
        return (None, *_differentiate(ctx, ctx.needs_input_grad[1:], d_o, d_lse))


def _below_autograd(keyset: Any, arguments: tuple) -> tuple[Tensor, Tensor]:
    with torch._C._AutoDispatchBelowAutograd():
        return _op.redispatch(keyset & torch._C._after_autograd_keyset, *arguments)


def _autograd(keyset: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in arguments[:_FIRST_OPTION]):
        return _Differentiable.apply(keyset, *arguments)
    return _below_autograd(keyset, arguments)


def _differentiate(ctx: Any, needed: tuple, d_o: Tensor | None, d_lse: Tensor | None) -> tuple:
    *arrays, o, lse = ctx.saved_tensors
    nothing = [None] * (_FIRST_OPTION + len(ctx.options))
    if d_o is None and d_lse is None:
        return tuple(nothing)
    for name in ("alibi_slopes", "k_scale", "v_scale"):
        if needed[3 + EXTRAS.index(name)]:
            raise NotImplementedError(f"{name}: requires a gradient, which is not defined here; pass {name}.detach()")
    sinks, bias = 3 + EXTRAS.index("sinks"), 3 + EXTRAS.index("bias")
    need_d_bias, need_d_sinks = needed[bias], needed[sinks]
    d_o = torch.zeros_like(o) if d_o is None else d_o
    dq, dk, dv, d_bias, d_sinks = _backward_op(d_o, d_lse, o, lse, *arrays, *ctx.options, need_d_bias, need_d_sinks)
    grads: list[Any] = nothing
    for place, grad in ((0, dq), (1, dk), (2, dv)):
        grads[place] = grad if needed[place] else None
    grads[bias] = d_bias if need_d_bias else None
    grads[sinks] = d_sinks if need_d_sinks else None
    return tuple(grads)


def _differentiate_twice(ctx: Any, *grads: Any) -> tuple:
    raise NotImplementedError("the second derivative of attention: no kernel computes it")


def _autocast_rule(device: str, key: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """Under autocast q, k and v take its dtype, as torch's own attention does; an additive bias follows unless it is
    float32, which every dtype of q goes with."""
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    bias_place = 3 + EXTRAS.index("bias")

    def cast(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        eligible = x is not None and x.is_floating_point() and x.dtype is not torch.float64
        return x.to(dtype) if eligible else x

    def rule(*arguments: Any) -> tuple[Tensor, Tensor]:
        dtype = torch.get_autocast_dtype(device)
        flat = [cast(x, dtype) for x in arguments[:3]] + list(arguments[3:])
        bias = flat[bias_place]
        if bias is not None and bias.dtype is not torch.float32:
            flat[bias_place] = cast(bias, dtype)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return _op(*flat)

    return rule


for _key in ("CPU", "CUDA"):
    _library.impl("attention", _forward, _key)
    _library.impl("attention_backward", _backward, _key)
    _library.impl("attention", _autocast_rule(_key.lower(), f"Autocast{_key}"), f"Autocast{_key}")
torch.library.register_fake("tessera::attention", _forward_fake, lib=_library)
torch.library.register_fake("tessera::attention_backward", _backward_fake, lib=_library)
_library.impl("attention", _autograd, "Autograd", with_keyset=True)
torch.library.register_autograd("tessera::attention_backward", _differentiate_twice, lib=_library)
