"""Which cases open stores by themselves, and so embedded ones only: a new one is a decision.

A case that takes a backend runs on each, unless its mark `needs` what that one does not offer. A
case, or a fixture, that takes `tmp_path` runs on none of them, and is written down here.
"""

import ast
from pathlib import Path

EMBEDDED_ONLY = {
    "a process of its own, or its signals and forks, is the case": {
        "test_interrupts.test_close_inside_a_call_waits_for_its_end",
        "test_interrupts.test_fork_may_not_use_the_store_nor_free_its_directory",
        "test_interrupts.test_interrupt_fails_the_store_which_opens_at_its_last_commit",
        "test_process.test_no_shared_memory_is_needed",
    },
    "options and paths of embstore.open, which a server has settings for": {
        "test_bad_options.test_limits_of_another_type",
        "test_bad_options.test_more_threads_than_anybody_has",
        "test_bad_options.test_option_of_open_makes_no_store",
        "test_directories.test_empty_directory_and_missing_parents_are_fine",
        "test_process.test_changing_the_directory_moves_no_store",
        "test_process.test_path_through_a_link",
    },
    "merges are held at their points; over the wire the state machine does that": {
        "test_merges.gated"
    },
    "pools are looked into as their shares of the cache change": {
        "test_cache_split.test_hits_are_near_those_of_the_best_split",
        "test_cache_split.test_a_scan_does_not_hide_what_a_rare_table_could_hit",
        "test_cache_split.test_what_was_decided_is_in_the_stats",
        "test_cache_split.test_on_demand_nothing_is_measured",
        "test_cache_split.test_the_same_calls_are_split_the_same",
        "test_cache_split_safety.test_digests_are_those_of_a_store_that_does_not_split",
        "test_cache_split_safety.test_a_session_is_exact_while_its_pools_get_smaller",
        "test_cache_split_safety.test_a_hot_set_is_pinned_again",
        "test_cache_split_safety.test_tables_that_come_and_go_and_a_new_size_begin_anew",
        "test_cache_split_safety.test_a_pool_keeps_room_for_its_largest_call",
        "test_cache_split_safety.test_a_full_disk_is_tried_once_until_it_is_decided_again",
        "test_cache_split_safety.test_stats_show_no_aims_that_have_ended",
    },
    "the planner's stages are held, slowed or looked at from within the process": {
        "test_hits.here",
        "test_manners.slow_store",
        "test_owners.test_a_step_that_waits_for_its_share_evicts_nobodys_rows",
        "test_owners.test_owners_have_equal_parts_ahead_of_their_turns",
        "test_pairs.test_trains_as_the_dense_reference",
        "test_planning.backend",
        "test_races.backend",
        "test_reads.test_a_planner_that_reads_early_reads_more_where_two_steps_hardly_fit",
        "test_reads.test_rows_read_are_nearly_those_of_belady_who_knows_the_same_steps",
    },
    "the state machine: one test for each backend": {
        "test_state_machine.test_a_served_store_follows_the_reference",
        "test_state_machine.test_a_store_follows_the_reference",
    },
}


def embedded_only(path):
    """Yield the cases and fixtures of a file that take `tmp_path`."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and "tmp_path" in {a.arg for a in node.args.args}:
            yield f"{path.stem}.{node.name}"


def test_every_case_that_opens_its_own_stores_has_its_reason():
    found = {
        case for path in Path(__file__).parent.rglob("test_*.py") for case in embedded_only(path)
    }
    assert found == set().union(*EMBEDDED_ONLY.values())
