"""Goal: every row of the tables that put Spark-Kafka's options beside ours is held by tests. Method: a table from rows to tests; a
row without one fails, and so does a test that does not exist.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "spark-options.md").read_text()

OPTIONS, PAGE_TESTS = "tests/unit/datasource/test_options.py", "tests/unit/datasource/test_options_page.py"
BATCH, STREAM = "tests/unit/datasource/test_batch_reader.py", "tests/unit/datasource/test_stream_reader.py"
PLANNING, PATTERNS = "tests/unit/datasource/test_planning.py", "tests/unit/datasource/test_patterns.py"
AVAILABLE_NOW = "tests/unit/datasource/test_available_now.py"
PARTITION, PROGRESS = "tests/unit/datasource/test_partition_reader.py", "tests/unit/datasource/test_progress.py"
STARTS, WHERE, DAMAGE = (
    "tests/integration/test_relative_starts.py",
    "tests/integration/test_where.py",
    "tests/integration/test_damage_passed.py",
)
SINK, COLUMNS, WRITER = "tests/unit/sink/test_options.py", "tests/unit/sink/test_columns.py", "tests/unit/sink/test_writer.py"
IDS, COMMITS = "tests/unit/sink/test_transaction_ids.py", "tests/integration/test_sink_transactions.py"
SPARK_BATCH, SPARK_STREAM = "tests/spark/test_batch.py", "tests/spark/test_stream.py"
GUIDE, AGGREGATIONS, SQL = "tests/spark/test_kafka_guide.py", "tests/spark/test_aggregations.py", "tests/spark/test_sql.py"
NAMES, CRASHES = "tests/unit/config/test_spark_options.py", "tests/spark/exactly_once/test_crashes.py"

# The first cell of a row: files and the tests in them.
READING: dict[str, dict[str, tuple[str, ...]]] = {
    "bootstrap.servers": {
        OPTIONS: ("test_client_settings_come_bare_or_behind_kafkas_prefix",),
        SINK: ("test_missing_servers_are_asked_for_by_name",),
    },
    "subscribe": {OPTIONS: ("test_subscriptions", "test_wrong_option_is_refused_in_one_sentence"), GUIDE: ("test_batch_queries",)},
    "subscribePattern": {
        PATTERNS: (
            "test_patterns_match_the_topics_that_java_would_match",
            "test_what_means_something_else_in_python_is_refused_by_name",
        ),
        SQL: ("test_javas_own_patterns_match_what_ours_are_said_to_match",),
        OPTIONS: ("test_an_empty_pattern_is_refused",),
    },
    "assign": {
        BATCH: ("test_assigned_partitions_and_no_others", "test_assigned_partition_that_does_not_exist_is_left_out_and_told"),
        STREAM: ("test_assigned_partition_that_comes_later_is_read_from_its_start_and_told_once",),
    },
    "startingOffsets": {
        OPTIONS: (
            "test_defaults_are_those_of_sparks_kafka_source",
            "test_offsets_in_json_use_minus_two_and_minus_one_for_the_ends",
            "test_words_for_the_ends_are_read_without_case_alone_and_for_a_topic",
        ),
        BATCH: ("test_offsets_of_whole_topics",),
        STARTS: ("test_a_batch_read_begins_so_much_before_the_end", "test_a_read_begins_where_a_group_has_got_to"),
    },
    "startingTimestamp": {OPTIONS: ("test_timestamps_go_before_offsets",), SPARK_BATCH: ("test_reads_from_a_time",)},
    "startingOffsetsByTimestamp": {
        PAGE_TESTS: ("test_the_strategy_holds_for_both_kinds_of_starting_times",),
        GUIDE: ("test_batch_queries_with_headers_and_from_a_time",),
    },
    "startingOffsetsByTimestampStrategy": {PAGE_TESTS: ("test_the_strategy_holds_for_both_kinds_of_starting_times",)},
    "endingOffsets": {SPARK_BATCH: ("test_bounds_and_splits",), BATCH: ("test_bounds_that_cannot_be_are_refused",)},
    "endingTimestamp": {
        PAGE_TESTS: ("test_an_end_by_time_goes_before_one_by_offset_and_belongs_to_batches",),
        WHERE: ("test_a_range_in_time_with_its_end_moves_little",),
    },
    "endingOffsetsByTimestamp": {PAGE_TESTS: ("test_an_end_by_time_goes_before_one_by_offset_and_belongs_to_batches",)},
    "where": {
        WHERE: ("test_rows_are_those_described_and_little_else_is_fetched",),
        BATCH: ("test_what_where_names_and_nobody_reads_is_told",),
        SPARK_BATCH: ("test_where_reads_what_it_describes_whatever_columns_are_asked_for",),
        SPARK_STREAM: ("test_a_stream_reads_the_rows_of_where_and_goes_on_behind_all_others",),
    },
    "failOnDataLoss": {
        PLANNING: (
            "test_case_b_retention_that_passed_the_checkpoint_is_told_with_numbers",
            "test_case_d_topic_created_anew_is_told_and_begins_at_its_start",
        ),
        STREAM: ("test_what_was_read_before_it_was_committed_is_no_loss_and_is_not_read_again",),
        PARTITION: ("test_without_fail_on_data_loss_what_is_left_is_read_and_told", "test_damage_is_gone_past_by_either_option"),
        SPARK_STREAM: ("test_retention_past_the_checkpoint_stops_the_query_or_is_skipped",),
    },
    "includeHeaders": {
        PARTITION: ("test_a_record_without_headers_has_null_however_it_was_written",),
        SPARK_BATCH: ("test_all_columns_come_back",),
        SPARK_STREAM: ("test_headers_and_a_new_partition_arrive_in_a_stream",),
    },
    "maxOffsetsPerTrigger": {
        PLANNING: (
            "test_limit_gives_every_partition_something_and_keeps_to_the_limit",
            "test_limit_smaller_than_the_number_of_partitions_still_moves_each",
        ),
        SPARK_STREAM: ("test_progress_tells_offsets_and_where_the_log_ends",),
    },
    "minOffsetsPerTrigger": {
        STREAM: ("test_a_batch_waits_for_min_offsets_or_for_the_delay_to_pass",),
        AVAILABLE_NOW: ("test_available_now_reads_everything_however_little_it_is",),
    },
    "maxTriggerDelay": {
        OPTIONS: ("test_trigger_delays_are_written_as_in_spark",),
        STREAM: ("test_a_batch_waits_for_min_offsets_or_for_the_delay_to_pass",),
    },
    "minPartitions": {
        PLANNING: ("test_pieces_are_those_of_sparks_kafka_connector",),
        BATCH: ("test_ranges_are_split_for_more_tasks",),
    },
    "maxRecordsPerPartition": {
        PLANNING: ("test_pieces_are_those_of_sparks_kafka_connector",),
        SPARK_BATCH: ("test_bounds_and_splits",),
    },
    "fetchOffset.numRetries": {OPTIONS: ("test_retry_knobs_of_a_ported_pipeline_are_accepted",)},
    "fetchOffset.retryIntervalMs": {OPTIONS: ("test_retry_knobs_of_a_ported_pipeline_are_accepted",)},
    "kafkaConsumer.pollTimeoutMs": {OPTIONS: ("test_retry_knobs_of_a_ported_pipeline_are_accepted",)},
    "groupIdPrefix": {
        OPTIONS: ("test_the_group_of_a_stream_has_the_name_that_was_chosen",),
        SPARK_STREAM: ("test_a_query_is_a_group_whose_lag_the_broker_shows",),
    },
    "group.id": {
        OPTIONS: ("test_the_group_of_a_stream_has_the_name_that_was_chosen", "test_a_start_may_be_what_a_group_has_read"),
        PROGRESS: ("test_a_stream_records_where_its_next_batch_starts_and_at_its_end_where_it_ended",),
    },
    "maxBytesPerTrigger": {
        STREAM: ("test_a_limit_of_bytes_ends_a_batch_with_a_record_batch", "test_rows_and_bytes_limit_a_batch_together"),
        SPARK_STREAM: ("test_a_limit_of_bytes_is_kept_and_a_record_batch_that_is_larger_still_goes",),
    },
    "isolation.level": {
        PAGE_TESTS: ("test_defaults_of_a_reader",),
        "tests/spark/test_source_transactions.py": ("test_available_now_ends_before_an_open_transaction",),
    },
    "fetch.max.bytes": {PAGE_TESTS: ("test_defaults_of_a_reader",)},
    "max.decompressed.bytes": {
        PAGE_TESTS: ("test_defaults_of_a_reader",),
        "tests/unit/client/test_fetched.py": ("test_a_batch_that_claims_more_than_a_reader_holds_is_refused",),
    },
    "skip.corrupt.batches": {
        PARTITION: (
            "test_damage_is_gone_past_by_either_option",
            "test_damage_ends_the_query_unless_asked_or_where_nobody_knows_its_end",
        ),
        DAMAGE: ("test_a_consumer_goes_past_damage_where_that_is_asked",),
    },
    "every other consumer setting": {
        PAGE_TESTS: ("test_defaults_of_a_reader",),
        NAMES: ("test_no_name_of_kafkas_clients_is_unknown_or_taken_for_another",),
    },
}
WRITING: dict[str, dict[str, tuple[str, ...]]] = {
    "topic": {COLUMNS: ("test_topic_option_overrides_the_column",), WRITER: ("test_plan_refuses_before_any_task_runs",)},
    "includeHeaders": {
        SINK: ("test_spark_lower_cases_names_and_all_are_found",),
        COLUMNS: ("test_wrong_columns_are_refused_by_name",),
    },
    "linger.ms": {PAGE_TESTS: ("test_defaults_of_a_writer",)},
    "every other producer setting": {
        PAGE_TESTS: ("test_defaults_of_a_writer",),
        SINK: ("test_wrong_option_is_refused_in_one_sentence",),
    },
    "delivery": {
        SINK: ("test_transactions_are_chosen_by_options",),
        SPARK_STREAM: ("test_replayed_batch_is_there_twice_at_least_once",),
        CRASHES: ("test_sparks_last_commit_file_is_lost",),
    },
    "transactional.id": {
        SINK: ("test_options_of_transactions_that_cannot_hold_are_refused",),
    },
    "transaction.timeout.ms": {PAGE_TESTS: ("test_defaults_of_a_writer",), SINK: ("test_transactions_are_chosen_by_options",)},
    "txnAppId": {
        IDS: ("test_write_with_application_and_version_is_named_by_them",),
        COMMITS: ("test_a_version_that_comes_again_is_read_and_not_sent",),
    },
    "txnLabel": {
        IDS: ("test_write_inside_foreach_batch_is_named_by_query_batch_and_topic_or_label",),
        COMMITS: ("test_a_second_write_of_one_batch_is_a_conflict",),
    },
    "failOnReplayMismatch": {COMMITS: ("test_other_rows_under_a_committed_version_are_an_error_or_a_warning",)},
    "value": {COLUMNS: ("test_value_alone_is_enough", "test_wrong_columns_are_refused_by_name")},
    "key": {SPARK_BATCH: ("test_all_columns_come_back",)},
    "timestamp": {SPARK_BATCH: ("test_all_columns_come_back",)},
    "offset": {
        COLUMNS: ("test_what_the_source_reads_can_be_written_as_it_is",),
        SPARK_BATCH: ("test_topic_column_parts_rows_and_a_topic_copies_to_another_as_it_is",),
    },
    "any other": {COLUMNS: ("test_wrong_columns_are_refused_by_name",)},
    "df.write": {GUIDE: ("test_batch_writes_need_a_mode_which_spark_demands_of_every_python_source",)},
    '.outputMode("append")': {AGGREGATIONS: ("test_append_with_a_watermark_writes_each_window_once_when_it_is_over",)},
    '.outputMode("update")': {
        AGGREGATIONS: ("test_other_output_modes_are_refused", "test_update_through_foreach_batch_writes_what_each_batch_changes"),
    },
    '.outputMode("complete")': {AGGREGATIONS: ("test_other_output_modes_are_refused",)},
}


def rows(title: str) -> list[str]:
    """The names of a section's rows: the first code in their first cells, or all of the cell."""
    section = re.search(rf"^## {title}$(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert section is not None, title
    names = []
    for before, line in zip(section[1].splitlines(), section[1].splitlines()[1:], strict=False):
        is_heading_or_rule = line.startswith("|---") or not before.startswith("|")
        if line.startswith("| ") and not is_heading_or_rule:
            cell = line.split("|")[1].strip()
            code = re.match(r"`([^`]+)`", cell)
            names.append(code[1] if code else cell)
    return names


@functools.cache
def names_of_tests(file: str) -> frozenset[str]:
    """Names of the test functions of a file."""
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))


@pytest.mark.parametrize(("title", "table"), [("Reading", READING), ("Writing", WRITING)])
def test_every_row_has_its_tests(title: str, table: dict[str, dict[str, tuple[str, ...]]]) -> None:
    assert rows(title) == list(table), f"the rows of '{title}' and this table, in the same order"
    for name, files in table.items():
        assert files, f"{name} has no test"
        for file, tests in files.items():
            assert tests, f"{name}: {file} names no test"
            assert set(tests) <= names_of_tests(file), f"{name}: {file} has no {sorted(set(tests) - names_of_tests(file))}"
