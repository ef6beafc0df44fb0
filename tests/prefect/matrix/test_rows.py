"""What Prefect does to a run, and the tests that say what it costs.

Each row is something that happens; the tests beside it assert the exact ledger: how
many charges, settled or forfeited, how often the body ran, and what was replayed.
"""

from __future__ import annotations

import ast
from pathlib import Path

FOLDER = Path(__file__).parent

#: What happens -> the tests of it, in this folder and the one above.
ROWS = {
    # Run again
    "a task's retries": (
        "test_each_retry_of_a_task_is_a_charge",
        "test_a_retry_condition_keeps_a_step_from_a_second_charge",
    ),
    "a flow's retries": (
        "test_a_flow_retry_replays_completed_steps",
        "test_a_flow_retry_repeats_a_step_that_cannot_be_told_by_its_arguments",
    ),
    "a flow's retries, results persisted": (
        "test_a_flow_retry_serves_a_persisted_step_from_prefects_storage",
    ),
    "a retry from the UI, failed": (
        "test_a_retry_from_the_ui_after_a_failure_replays_what_was_released",
    ),
    "a retry from the UI, crashed or cancelled": (
        "test_a_retry_from_the_ui_after_another_end_replays_too",
        "test_a_retried_run_of_a_deployment_replays_across_processes",
    ),
    "a retry from the UI, exhausted": (
        "test_a_retry_from_the_ui_after_exhaustion_is_refused_again",
        "test_a_retry_from_the_ui_completes_once_the_policy_has_room",
    ),
    "a retry from the UI, exhausted, after a new term": (
        "test_a_retry_from_the_ui_after_exhaustion_and_a_new_term_pays_for_the_rest",
        "test_a_new_term_lets_the_halted_run_end_and_the_schedule_go_on",
    ),
    "suspended and resumed": ("test_suspend_and_resume_replays_what_was_released",),
    "paused and resumed": ("test_pause_and_resume_go_on_where_they_stopped",),
    "one run executed twice at once": (
        "test_a_run_that_two_workers_execute_is_charged_once",
        "test_two_executions_of_one_run_are_both_ended_by_a_refusal",
    ),
    "replayed: what Prefect shows, and what everyone gets": (
        "test_a_replay_is_a_completed_state_of_its_own_name",
        "test_every_way_to_ask_gets_the_value",
        "test_an_async_step_is_replayed_as_its_value_too",
        "test_a_replayed_none_is_none",
        "test_persisted_and_cached_results_are_the_value",
        "test_other_processes_hand_the_value_back",
        "test_a_state_that_a_body_returns_is_not_taken_for_a_replay",
        "test_a_background_step_is_replayed_as_its_value",
    ),
    # Stopped
    "SIGKILL, a script": (
        "test_a_killed_script_forfeits_its_charge",
        "test_its_retry_replays_what_was_settled_and_pays_for_the_rest",
    ),
    "SIGKILL, a process worker's run": (
        "test_a_run_that_a_worker_lost_is_charged_in_full",
        "test_the_next_run_replays_and_pays_for_what_was_lost",
        "test_a_retry_of_the_lost_run_replays_all_and_pays_nothing",
    ),
    "SIGTERM or SIGINT, the step called": (
        "test_a_called_step_that_is_told_to_stop_is_charged_in_full",
    ),
    "SIGTERM or SIGINT, the step submitted": (
        "test_a_submitted_step_runs_to_its_end_behind_the_crash",
    ),
    "cancelled, the step called": ("test_a_cancelled_called_step_is_charged_in_full",),
    "cancelled, the step submitted": (
        "test_a_cancelled_submitted_step_runs_to_its_end",
    ),
    "SIGKILL, Prefect's server": (
        "test_a_killed_server_delays_no_settlement_and_no_end",
        "test_a_server_that_does_not_answer_is_given_up",
    ),
    "a task's timeout": (
        "test_a_task_timeout_is_charged_in_full",
        "test_an_async_task_timeout_is_charged_in_full",
        "test_a_retried_timeout_is_two_charges",
    ),
    "a flow's timeout": ("test_a_flow_timeout_leaves_no_step_uncharged",),
    "submitted and never awaited, or a flow that raises early": (
        "test_steps_that_nobody_awaits_are_charged_if_they_run",
        "test_a_plain_flow_that_raises_early_drops_what_is_queued",
    ),
    # Elsewhere
    "a Dask worker killed in a body": (
        "test_a_dask_worker_that_dies_in_a_body_costs_one_charge_more",
    ),
    "a Dask worker that dies later": ("test_what_dask_computes_again_is_replayed",),
    "a process of a pool killed": (
        "test_a_killed_process_of_a_pool_forfeits_its_charge",
    ),
    "a background worker killed": (
        "test_a_killed_background_worker_forfeits_its_charge",
    ),
    # Caches, transactions, hooks
    "Prefect's cache: hit, refreshed, switched off": (
        "test_another_run_is_charged_unless_prefect_has_the_value",
        "test_the_same_call_in_one_run_is_one_charge",
        "test_a_fresh_step_is_a_new_draw_at_a_new_charge",
    ),
    "three identical submits": (
        "test_three_identical_submits_are_one_charge",
        "test_three_identical_submits_of_a_fresh_step_are_three_charges",
    ),
    "a transaction whose sibling fails": (
        "test_a_rolled_back_transaction_refunds_nothing",
    ),
    "a task that fails in a transaction": (
        "test_a_failing_step_is_charged_though_its_rollback_never_fires",
    ),
    "on_commit or on_running raises": ("test_hooks_neither_gate_nor_account",),
    # Refused
    "each state that a refused step could end in": (
        "test_what_prefect_makes_of_each_way_to_refuse",
        "test_an_aborted_task_takes_its_flow_along",
        "test_a_pending_state_stops_nothing_behind_allow_failure",
    ),
    "ours, by call, submit, map, wait_for, allow_failure, subflow, return": (
        "test_a_refusal_ends_the_flow_whatever_the_way",
    ),
    "a refusal in the cache": ("test_a_refusal_is_not_served_from_the_cache",),
    "a refused step that is called": (
        "test_calling_a_refused_step_raises_and_return_state_does_not",
        "test_awaiting_a_refused_async_step_raises",
    ),
    "a refusal in another process": (
        "test_a_process_pool_is_charged_and_refused_as_a_thread_is",
        "test_dask_is_charged_and_refused_as_a_thread_is",
        "test_the_refusal_survives_a_second_process",
    ),
    # Scheduled
    "a served schedule, exhausted and served again": (
        "test_a_served_report_halts_pauses_and_pauses_again",
        "test_only_an_exhausted_budget_pauses_the_schedule",
        "test_a_report_served_by_cron_makes_its_runs_and_is_paused",
    ),
    "a deployment of prefect.yaml, exhausted and redeployed": (
        "test_the_deployed_report_runs_until_its_budget_is_gone",
        "test_a_redeploy_and_a_duplicate_tick_spend_nothing",
    ),
    "a schedule whose steps name no key": (
        "test_deploying_warns_of_steps_without_a_key",
        "test_a_deployed_run_tells_of_each_step_that_it_charged",
    ),
}


def _tests():
    """Return the names of all tests with Prefect."""
    found = set()
    for path in FOLDER.parent.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(node.name)
    return {name for name in found if name.startswith("test_")}


def test_each_row_has_its_tests():
    """A test that is renamed or removed leaves no row behind."""
    assert all(ROWS.values())
    assert {name for names in ROWS.values() for name in names} <= _tests()
