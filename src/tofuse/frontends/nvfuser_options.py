"""The names of nvFuser's options, which `execute` takes; they steer its CUDA kernels only."""

from __future__ import annotations

from collections.abc import Sequence

from tofuse.errors import DefinitionError, did_you_mean


def check_options(enable: Sequence[str], disable: Sequence[str]) -> None:
    """Raise DefinitionError for a name that is no option of nvFuser."""
    for kind, given, known in (("enable", enable, ENABLE), ("disable", disable, DISABLE)):
        for name in given:
            if name not in known.split():
                hint = did_you_mean(name, known.split())
                raise DefinitionError(f"execute: unrecognized {kind}_option {name!r}{hint}")


ENABLE = (
    "cutlass_scheduler fast_math fuse_matmul fuse_multiple_matmuls host_ir_jit host_ir_lowering "
    "id_model id_model_extra_validation insert_resharding_after io_to_lower_precision kernel_db "
    "kernel_debug kernel_lineinfo kernel_profile memory_promotion multicast_protocol p2p_protocol "
    "p2p_transport reuse_zeroed_memory static_fusion_count tma_inner_persistent tma_pointwise "
    "tma_reduction wait_debugger warn_register_spill ws_normalization"
)

DISABLE = (
    "compile_to_sass contig_indexing expr_simplify fallback fma greedy_scheduler "
    "grouped_grid_welford_outer_opt index_hoist infer_contiguity kernel_reuse magic_zero "
    "matmul_expr_eval multidevice nvrtc_caching nvtx parallel_compile predicate_elimination "
    "python_inline_definitions resize_scheduler reuse_mismatched_type_registers "
    "var_name_remapping welford_vectorization"
)
