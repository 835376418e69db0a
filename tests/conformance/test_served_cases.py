"""Which cases do not run over the wire, and why: a new one is a decision, and is written down here.

A case that takes a backend runs on each, unless it needs what that one does not offer. A case, or a
fixture, that takes `tmp_path` opens stores by itself, and so the embedded ones only.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.conformance.served import Served

NOT_SERVED = {
    "the process is the server's: its descriptors, its threads, its forks, its end": {
        "test_descriptor_regressions.test_close_gives_every_descriptor_back",
        "test_descriptor_regressions.test_folded_tables_keep_no_descriptors",
        "test_peer_regressions.test_interpreter_exit",
        "test_process.test_closing_frees_the_directory_though_a_forked_child_lives",
        "test_process.test_closing_gives_descriptors_and_threads_back",
        "test_process.test_more_tables_than_descriptors",
        "test_process.test_refused_openings_keep_no_descriptor",
    },
    "a process of its own, or its signals and forks, is the case": {
        "test_bad_offsets.test_pooled_lookup_with_wrapping_offsets_is_refused_not_a_crash",
        "test_hotset_regressions.test_a_fork_made_while_a_call_runs_is_told_and_can_close",
        "test_interrupts.test_close_inside_a_call_waits_for_its_end",
        "test_interrupts.test_fork_may_not_use_the_store_nor_free_its_directory",
        "test_interrupts.test_interrupt_fails_the_store_which_opens_at_its_last_commit",
        "test_peer_regressions.test_no_shared_memory_is_needed",
    },
    "options and paths of embstore.open, which a server has settings for": {
        "test_bad_options.test_limits_of_another_type",
        "test_bad_options.test_option_of_open_makes_no_store",
        "test_directories.test_empty_directory_and_missing_parents_are_fine",
        "test_process.test_changing_the_directory_moves_no_store",
        "test_process.test_path_through_a_link",
    },
    "merges are held at their points; over the wire the state machine does that": {
        "test_held_merge_regressions.gated",
        "test_peer_regressions.test_closing_while_a_merge_is_writing",
        "test_seed_regressions.test_rows_written_back_late_are_not_read_early",
    },
    "the planner's stages are held or slowed from within the process": {
        "test_session_manners.slow_store",
        "test_session_pairs.test_trains_as_the_dense_reference",
        "test_session_races.backend",
        "test_session_regressions.backend",
    },
    "what a step's handle tells before its turn; over the wire a reply's messages carry it": {
        "test_session_early.test_early_rows_of_a_random_trace_are_what_the_step_is_told",
        "test_session_early.test_handle_of_a_closed_session",
        "test_session_early.test_late_rows_come_however_the_step_before_is_finished",
        "test_session_early.test_pooled_at_ready",
        "test_session_early.test_rows_that_no_unfinished_step_has_are_early",
        "test_session_early.test_shared_session_has_no_early_rows",
        "test_session_early.test_watcher_hears_of_progress",
    },
    "planner, threads and figures of the process are asked; tests/service has real clients": {
        "test_session_call_regressions.test_a_group_beyond_all_windows_is_refused",
        "test_session_call_regressions.test_a_lookup_that_is_repeated_counts_once",
        "test_session_call_regressions.test_a_place_that_was_forgotten_stays_so_when_the_store_is_opened_again",
        "test_session_call_regressions.test_a_pooled_lookup_counts_its_misses_and_its_own_tables",
        "test_session_call_regressions.test_a_run_without_a_name_that_failed_leaves_no_place",
        "test_session_call_regressions.test_a_skip_sent_after_an_update_of_the_same_rank_is_what_holds",
        "test_session_call_regressions.test_an_interrupt_while_the_engine_is_waited_for_leaves_nobody_waiting",
        "test_session_call_regressions.test_keys_beyond_the_bytes_that_may_be_announced_are_refused",
        "test_session_call_regressions.test_the_time_a_trainer_computes_is_no_stall",
        "test_session_leases.test_a_thousand_openings_leak_nothing",
        "test_session_leases.test_closing_the_store_ends_a_session_and_its_threads",
        "test_session_manners.test_most_bytes_travel_early_on_criteo_shaped_traces",
        "test_session_refusals.test_ranks_that_disagree",
        "test_session_refusals.test_refused_share_leaves_the_step_open_for_a_resend",
    },
    "imports meet other calls at points within them, and the cache's slots are looked into": {
        "test_popularity_regressions.test_an_import_beside_a_restore_ranks_the_tables_of_now",
        "test_popularity_regressions.test_an_import_of_a_store_that_is_closed_meanwhile_writes_nothing",
        "test_popularity_regressions.test_an_import_ranks_the_resident_rows_of_all_its_tables_piece_by_piece",
        "test_popularity_regressions.test_of_two_imports_at_once_one_is_ranked_and_kept",
        "test_popularity_regressions.test_rename_of_another_type_is_refused",
    },
    "the state machine: one test for each backend": {
        "test_state_machine.test_a_served_store_follows_the_reference",
        "test_state_machine.test_a_store_follows_the_reference",
    },
}


def needs_of(nodes: list[ast.expr]) -> set[str]:
    """Return what the `needs` marks among some expressions name."""
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    marks = [call for call in calls if getattr(call.func, "attr", "") == "needs"]
    return {arg.value for mark in marks for arg in mark.args}


def embedded_only(path: Path) -> Iterator[str]:
    """Yield the cases of a file that do not run over the wire."""
    body = ast.parse(path.read_text()).body
    of_module = [n.value for n in body if isinstance(n, ast.Assign) and "pytestmark" in names(n)]
    for node in body:
        if not isinstance(node, ast.FunctionDef):
            continue
        takes = {argument.arg for argument in node.args.args}
        needs = needs_of([*node.decorator_list, *of_module])
        is_case = node.name.startswith("test_") and takes
        if "tmp_path" in takes or (is_case and needs - Served.offers):
            yield f"{path.stem}.{node.name}"


def names(node: ast.Assign) -> set[str]:
    return {target.id for target in node.targets if isinstance(target, ast.Name)}


def test_every_case_that_does_not_run_over_the_wire_has_its_reason():
    files = sorted(Path(__file__).parent.glob("test_*.py"))
    found = {case for path in files for case in embedded_only(path)}
    assert found == set().union(*NOT_SERVED.values())
