"""Some of PyTorch's own tests, with rdmatx in gloo's place; `make test-torch-suite` runs them all."""

from __future__ import annotations

import pytest

from tests.launch import TIME_SCALE
from tests.torch import suite

WORLD = 2
CHOSEN = (
    "test_all_gather_coalesced_complex",
    "test_all_gather_object_subgroup",
    "test_all_reduce_coalesced_full_group_sum",
    "test_all_reduce_complex_unsupported_ops",
    "test_all_reduce_full_group_max",
    "test_all_reduce_sum_async",
    "test_all_to_all_complex",
    "test_all_to_all_single_unequal_split",
    "test_barrier_timeout_full_group",
    "test_batch_isend_irecv_gloo_tags",
    "test_broadcast_full_group",
    "test_ddp_create_graph",
    "test_gather_full_group",
    "test_irecv",
    "test_isend_torch_profiler",
    "test_monitored_barrier_gloo_rank_0_timeout",
    "test_monitored_barrier_gloo_subgroup",
    "test_reduce_full_group_sum",
    "test_scatter_object_list",
    "test_send_recv_any_source_torch_profiler",
    "test_send_recv_with_tag",
    "test_static_graph_api_cpu",
)


@pytest.mark.timeout(240)
def test_chosen_tests_of_torch() -> None:
    pytest.importorskip("expecttest")
    outcomes = suite.run("rdmatx", WORLD, list(CHOSEN), 200 * TIME_SCALE)
    wrong = {name: outcome for name, outcome in outcomes.items() if outcome[0] != "passed"}
    assert not wrong, "\n".join(f"{name}: {word}: {text}" for name, (word, text) in wrong.items())
    assert set(outcomes) == set(CHOSEN)
