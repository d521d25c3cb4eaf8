"""Exactly once through Spark: real drivers, tasks and brokers; streams, `foreachBatch` and `append_to` (`make exactly-once`).

Each test ends with the rows of the input, each once and in order per key, and a read_committed reader that polls throughout sees no
row that is missing later.

    the driver is killed while tasks write, or before, in or after its commit      test_driver_killed_around_its_commit
    the same in append_to; the replay uses the same writer or the other            test_driver_killed_in_append_to
    a task fails after writing, or its Python worker is killed                     test_task_that_is_run_again
    two attempts of a task write at once on two hosts, the loser after the commit  test_rows_of_a_speculative_twin_are_there_once
    an executor is killed while its tasks write                                    test_executor_killed_in_the_middle_of_its_rows
    the broker is killed before or in a commit                                     test_broker_killed_around_a_commit
    Spark's last `commits/N` is lost and the query restarted                       test_sparks_last_commit_file_is_lost
    a batch is replayed with other tasks and other cuts of the source's partitions test_replay_with_other_partitions
    a copy of the checkpoint runs later, with equal, fewer or different rows       test_copy_that_runs_after_the_original
    a copy that is further behind runs                                             test_copy_that_is_further_behind_is_refused
    two drivers run at once on copies of one checkpoint, or on one checkpoint      test_copies_at_the_same_time,
                                                                                   test_two_drivers_on_one_checkpoint
    the driver of a batch write is killed before its commit                        test_batch_write_is_visible_at_once_or_not_at_all
    drivers, Python workers and the broker are killed at random under two queries  test_pipeline_under_random_kills_writes_what_an_
                                                                                   undisturbed_one_does
"""
