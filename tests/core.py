"""The core of the integration tests: one journey for each documented feature, in `make test`.

A page of docs/ that describes a feature has the tests that show it; `make test-all` runs the others
too. Pages about the project, its figures and its terms describe no feature.
"""

CORE: dict[str, tuple[str, ...]] = {
    # The longest start first, so that none of them runs alone at the end.
    "getting-started": (
        "integration/docs/test_quick_starts_run.py::test_commands_run_as_printed_one_page_after_the_other[checkout]",
    ),
    "arena": ("integration/cli/test_effective_job.py",),
    "elastic-trainer": ("integration/elastic/trainer/test_training_report.py",),
    "diagnose": ("integration/cli/test_changing_jobs.py::test_diagnose_and_doctor_find_problems",),
    "brain": (
        "integration/brain/test_brain_process.py::test_third_run_is_advised_from_the_first_two",
    ),
    "history": (
        "integration/brain/test_recorder.py::test_job_that_is_deleted_after_its_end_has_its_record",
    ),
    "cli": (
        "integration/cli/test_jobs_from_the_command_line.py::test_a_job_from_submission_to_deletion",
        "integration/cli/test_jobs_from_the_command_line.py::test_failed_job_sets_exit_status",
    ),
    "sdk": (
        "integration/sdk/test_session.py::test_a_function_is_run_watched_and_read_from_python",
    ),
    "apiserver": (
        "integration/apiserver/test_server_python_client.py::test_custom_kinds_are_served_as_soon_as_they_are_defined",
    ),
    "brain-models": ("integration/brain/test_collector.py",),
    "causes": (
        "integration/cluster/test_verdicts.py::test_cause_is_the_same_in_each_report[script]",
    ),
    "checkpoints": (
        "integration/elastic/checkpoint/test_checkpoint_ranks.py::test_a_new_node_restores_from_the_memory_of_its_peer",
    ),
    "cluster": (
        "integration/cluster/test_cluster_nodes.py::test_a_service_leads_to_its_pod_by_name",
    ),
    "dashboard": ("integration/dashboard/test_dashboard_journey.py",),
    "data-sharding": ("integration/elastic/data/test_data_launcher.py",),
    "deployment": (
        "integration/deploy/test_deploy_command.py::test_it_is_installed_upgraded_and_removed",
    ),
    "elastic": (
        "integration/elastic/launcher/test_launcher_nodes.py::test_a_killed_worker_restarts_both_nodes_also_while_the_master_is_gone[127.0.0.1]",
    ),
    "elastic-job": (
        "integration/operator/test_operator_elastic.py::test_complete_life_with_the_rights_of_the_shipped_manifests",
    ),
    "elastic-master": (
        "integration/elastic/master/test_master_process.py::test_nodes_form_a_world_and_restart_after_a_death",
    ),
    "embedded-cluster": (
        "integration/cluster/test_cluster_detached.py::test_detached_cluster_starts_reports_status_and_stops",
    ),
    "frameworks": (
        "integration/operator/test_operator_kinds.py::test_a_tfjob_runs_and_succeeds_with_its_chief",
    ),
    "kinds": (
        "integration/operator/test_operator_kinds.py::test_an_mpijob_from_its_workers_to_its_end",
    ),
    "launcher": (
        "integration/elastic/launcher/test_launcher_one_node.py::test_a_killed_worker_is_replaced_together_with_its_peers",
    ),
    "mindspore": (
        "integration/operator/test_operator_kinds.py::test_mindspore_workers_get_the_address_of_the_schedulers_service",
    ),
    "monitoring": (
        "integration/operator/test_operator_flags.py::test_metrics_and_health_are_served_under_known_names",
    ),
    "node-check": (
        "integration/elastic/nodecheck/test_nodecheck_run.py::test_a_node_that_fails_is_found_and_the_others_train_on",
    ),
    "operator": (
        "integration/operator/test_operator_life.py::test_a_job_gets_its_pods_services_and_group_and_succeeds",
        "integration/operator/test_operator_life.py::test_suspend_and_resume",
    ),
    "paddle": (
        "integration/operator/test_operator_kinds.py::test_a_paddlejob_completes_with_its_workers_and_keeps_its_status",
    ),
    "plan": (
        "integration/sizing/test_planned_jobs.py::test_a_planned_job_is_accepted_and_knows_its_training",
    ),
    "pods": (
        "integration/kube/test_kube_pods.py",
        "integration/kubelet/test_pod_life.py::test_a_pod_runs_to_success",
    ),
    "restarts": (
        "integration/elastic/launcher/test_launcher_restarts.py"
        "::test_budget_of_restarts[no progress in the window]",
    ),
    "scheduled-jobs": ("integration/cluster/test_batch_jobs.py::test_a_job_runs_on_a_cluster",),
    "scheduler": (
        "integration/scheduler/test_scheduling.py::test_gang_is_placed_and_its_status_is_running",
        "integration/scheduler/test_scheduling.py::test_gang_of_higher_priority_evicts_what_it_needs",
    ),
    "security": (
        "security/test_tokens.py::test_a_token_dies_with_the_pod_that_it_is_bound_to",
        "security/test_tokens.py::test_a_malformed_token_is_unauthorized",
    ),
    "survivors": (
        "integration/elastic/launcher/test_launcher_survivors.py::test_two_ranks_are_lost_while_one_successor_is_warm",
    ),
    "trainjob": (
        "integration/operator/test_operator_train.py::test_job_runs_and_completes_with_all_its_nodes",
    ),
}
