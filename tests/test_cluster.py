"""Cluster discovery from the environment."""

import json
import os
import unittest
from pathlib import Path
from unittest import mock
from zlib import crc32

import yaml

from myxtts.base.errors import ConfigError
from myxtts.commands import check_distributed, launch, train
from myxtts.devicefeed.errors import PlacementError, UserError
from myxtts.distributed.cluster import Cluster, expand_counts, expand_hosts, find_cluster
from myxtts.extras.jobs import jobs_command as jobs
from tests.fixtures import reported

SLURM = {
    "SLURM_JOB_ID": "31234",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NODELIST": "n[2,9-10]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_NODEID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_ID": "0",
}
TORCHRUN = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "0"}
TORCHRUN |= {"MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
OPEN_MPI |= {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "2801532929"}


def tf_config(jobs, kind="worker", index=0) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": jobs, "task": {"type": kind, "index": index}})}


class TfConfigTest(unittest.TestCase):
    def test_workers_are_numbered_in_the_order_of_their_addresses(self):
        cluster = find_cluster(tf_config({"worker": ["a:1", "b:2"]}, index=1))
        self.assertEqual(cluster, Cluster(("a:1", "b:2"), 1))
        self.assertEqual((cluster.count, cluster.is_chief, cluster.address), (2, False, "b:2"))
        self.assertEqual((cluster.name(), cluster.name(0)), ("worker 1 (b:2)", "worker 0 (a:1)"))

    def test_addresses_may_be_of_ipv6(self):
        workers = ["[fd00::1]:2222", "[fd00::2]:2222"]
        self.assertEqual(find_cluster(tf_config({"worker": workers})).workers, tuple(workers))

    def test_chief_is_worker_0(self):
        jobs = {"chief": ["a:1"], "worker": ["b:2", "c:3"]}
        self.assertEqual(find_cluster(tf_config(jobs, "chief")), Cluster(("a:1", "b:2", "c:3"), 0))
        actual = find_cluster(tf_config(jobs, "worker", 1))
        self.assertEqual(actual, Cluster(("a:1", "b:2", "c:3"), 2))

    def test_tf_config_round_trips(self):
        cluster = Cluster(("a:1", "b:2"), 1)
        self.assertEqual(find_cluster({"TF_CONFIG": cluster.tf_config()}), cluster)

    def test_fewer_than_two_workers_are_not_a_cluster(self):
        alone = ({}, {"TF_CONFIG": " "}, {"TF_CONFIG": "{}"}, tf_config({"worker": ["a:1"]}))
        self.assertEqual([*map(find_cluster, alone)], [None] * 4)

    def test_invalid_tf_config_is_rejected_with_its_reason(self):
        two = {"worker": ["a:1", "b:2"]}
        invalid = {
            "Invalid JSON": {"TF_CONFIG": "{'cluster'"},
            "TF_CONFIG: .* an object": {"TF_CONFIG": "[]"},
            "TF_CONFIG.cluster: .* an object": {"TF_CONFIG": '{"cluster": []}'},
            "TF_CONFIG.task: it is not in the cluster": {"TF_CONFIG": json.dumps({"cluster": two})},
            "cluster.ps": tf_config({**two, "ps": ["c:3"]}),
            "cluster.chief: .* at most 1": tf_config({**two, "chief": ["c:3", "d:4"]}),
            "names the workers none": tf_config({"worker": []}),
            "names the workers a:1, a:1": tf_config({"worker": ["a:1", "a:1"]}),
            "in TF_CONFIG is 'a', but must be HOST:PORT": tf_config({"worker": ["a", "b:2"]}),
            "is 'a..b:1', but": tf_config({"worker": ["a..b:1", "b:2"]}),
            "is '\\[fd00:\\]:1', but": tf_config({"worker": ["[fd00:]:1", "b:2"]}),
            "is 'fd00::1:2', but": tf_config({"worker": ["fd00::1:2", "b:2"]}),
            "is 'a:70000', but": tf_config({"worker": ["a:70000", "b:2"]}),
            "cluster.worker.0": tf_config({"worker": [7, "b:2"]}),
            "task.type": tf_config(two, "ps"),
            "task: it is not": tf_config(two, index=2),
            "task.index: .* greater than": tf_config(two, index=-1),
            "task.index: .* valid integer": tf_config(two, index="0"),
            "index: .* valid integer": tf_config(two, index=True),
        }
        for reason, environ in invalid.items():
            with self.subTest(reason=reason), self.assertRaisesRegex(UserError, reason):
                find_cluster(environ)


class LauncherTest(unittest.TestCase):
    """Launchers that tell a process its rank, the number of processes, and the host of rank 0."""

    def test_rank_size_and_the_host_of_rank_0_are_enough(self):
        port = 15_000 + crc32(b"") % 16_000
        for environ, workers, index in (
            (TORCHRUN, ("n1:29500", "", "", ""), 2),
            # torchrun's agent listens on its port: 15000 + 29500 % 16000.
            (TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True"}, ("n1:28500", "", "", ""), 2),
            ({"JOB_COMPLETION_INDEX": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "j-0.j"}, "j-0.j", 1),
            (OPEN_MPI | {"MASTER_ADDR": "n1", "MASTER_PORT": "5"}, ("n1:5", ""), 1),
            ({"PMI_RANK": "0", "PMI_SIZE": "2", "MASTER_ADDR": "fd00::1"}, "[fd00::1]", 0),
            (OPEN_MPI | {"MASTER_ADDR": "[fd00::1]:5"}, ("[fd00::1]:5", ""), 1),
            (OPEN_MPI | {"MASTER_ADDR": "n1:5"}, ("n1:5", ""), 1),
            ({"PMI_RANK": "0", "PMI_SIZE": "2", "MASTER_ADDR": "n1"}, "n1", 0),
            ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}, "localhost", 1),
            (
                {
                    "PET_NNODES": "2",
                    "PET_NODE_RANK": "1",
                    "PET_NPROC_PER_NODE": "1",
                    "PET_MASTER_ADDR": "run-node-0-0.run",
                    "PET_MASTER_PORT": "29400",
                },
                ("run-node-0-0.run:29400", ""),
                1,
            ),
            (
                {
                    "JAX_NUM_PROCESSES": "3",
                    "JAX_PROCESS_ID": "2",
                    "JAX_COORDINATOR_ADDRESS": "run-node-0-0.run:6666",
                },
                ("run-node-0-0.run:6666", "", ""),
                2,
            ),
            (
                {
                    "SKYPILOT_NUM_NODES": "2",
                    "SKYPILOT_NODE_RANK": "1",
                    "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.7",
                },
                "10.0.0.4",
                1,
            ),
            (
                {
                    "AWS_BATCH_JOB_NUM_NODES": "2",
                    "AWS_BATCH_JOB_NODE_INDEX": "1",
                    "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "10.0.0.4",
                },
                "10.0.0.4",
                1,
            ),
        ):
            with self.subTest(environ=environ):
                if isinstance(workers, str):
                    workers = (f"{workers}:{port}", "")
                cluster = find_cluster(environ)
                self.assertEqual((cluster.workers, cluster.index), (workers, index))

    def test_main_node_of_aws_batch_is_told_its_host_by_the_job_script(self):
        environ = {"AWS_BATCH_JOB_NUM_NODES": "2", "AWS_BATCH_JOB_NODE_INDEX": "0"}
        with self.assertRaisesRegex(PlacementError, "PRIVATE_IPV4_ADDRESS is missing"):
            find_cluster(environ)
        cluster = find_cluster(environ | {"MASTER_ADDR": "10.0.0.4"})
        self.assertEqual((cluster.workers[0].partition(":")[0], cluster.index), ("10.0.0.4", 0))

    def test_processes_of_one_host_need_no_address_and_two_mpiruns_have_different_ports(self):
        workers = [
            find_cluster(OPEN_MPI | {"PMIX_NAMESPACE": name}).workers for name in ("17", "18", "17")
        ]
        self.assertEqual([each[0].partition(":")[0] for each in workers], ["localhost"] * 3)
        self.assertEqual(workers[0], workers[2])
        self.assertNotEqual(workers[0], workers[1])

    def test_place_on_the_host_is_told_by_the_launcher_or_by_addresses(self):
        hosts = {"worker": ["n1:1", "n1:2", "n2:1"]}
        by_hand = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n1"}
        mpich = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "1"}
        job = {"JOB_COMPLETION_INDEX": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "pod-0.job"}
        for environ, place in (
            (TORCHRUN, (0, 2)),
            (TORCHRUN | {"RANK": "3", "LOCAL_RANK": "1"}, (1, 2)),
            (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_RANK": "1"}, (1, 2)),
            (mpich, (1, 2)),
            (SLURM, (0, 1)),
            (SLURM | {"SLURM_NODEID": "1", "SLURM_LOCALID": "1"}, (1, 2)),
            (tf_config(hosts, index=1), (1, 2)),
            (tf_config(hosts, index=2), (0, 1)),
            (tf_config({"chief": ["n1:5"], "worker": ["n1:1", "n1:2"]}, index=1), (2, 3)),
            (tf_config({"worker": ["[::1]:1", "[::1]:2"]}, index=1), (1, 2)),
            # Without a local size: of a loopback address, or at most the number of all.
            (by_hand | {"MASTER_ADDR": "127.0.0.1"}, (1, 2)),
            (by_hand | {"LOCAL_RANK": "1"}, (1, 2)),
            (by_hand | {"SLURM_LOCALID": "1"}, (1, 2)),
            (by_hand, (0, 1)),
            (by_hand | {"RANK": "0"}, (0, 1)),
            # One process in each Pod or on each node.
            (job, (0, 1)),
            (job | {"JOB_COMPLETION_INDEX": "1"}, (0, 1)),
        ):
            with self.subTest(environ=environ):
                self.assertEqual(find_cluster(environ).place_on_host, place)

    def test_several_processes_that_cannot_meet_are_refused_naming_the_variable(self):
        for environ, reason in (
            ({"WORLD_SIZE": "4"}, "WORLD_SIZE is '4', .* but RANK is ''"),
            (
                {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
                "OMPI_COMM_.* MASTER_ADDR is missing",
            ),
            ({"PMI_SIZE": "2", "PMI_RANK": "0"}, "PMI_SIZE is '2', .* but MASTER_ADDR is missing"),
            ({"PET_NNODES": "1:4", "PET_NODE_RANK": "0"}, "PET_NNODES is '1:4', .* not a number"),
            ({"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "2"}, "but JAX_PROCESS_ID is '2'"),
            (
                {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "0"},
                "SKYPILOT_NODE_IPS is missing",
            ),
            ({"AWS_BATCH_JOB_NUM_NODES": "2", "AWS_BATCH_JOB_NODE_INDEX": "1"}, "is missing"),
            (TORCHRUN | {"LOCAL_RANK": "2"}, "but LOCAL_RANK is '2' of 2"),
            (TORCHRUN | {"LOCAL_RANK": "gpu"}, "but LOCAL_RANK is 'gpu' of 2"),
            (TORCHRUN | {"LOCAL_WORLD_SIZE": "two"}, "but LOCAL_WORLD_SIZE is 'two'"),
            (TORCHRUN | {"MASTER_PORT": "x"}, "rank 0 in MASTER_ADDR and MASTER_PORT is 'n1:x'"),
            (
                {"TF_CONFIG": '{"sparseCluster": {"worker": {"0": "a:1"}}}'},
                "TF_CONFIG.sparseCluster",
            ),
        ):
            with self.subTest(environ=environ), self.assertRaisesRegex(UserError, reason):
                find_cluster(environ)

    def test_a_single_process_and_an_empty_tf_config_train_alone(self):
        single = {"RANK": "0", "WORLD_SIZE": "1", "PMI_SIZE": "1", "SKYPILOT_NUM_NODES": "1"}
        for environ in (single, {**TORCHRUN, "TF_CONFIG": "{}"}, {"JOB_COMPLETION_INDEX": "3"}):
            self.assertIsNone(find_cluster(environ))

    def test_independent_jobs_are_no_workers(self):
        with mock.patch.dict(os.environ, TORCHRUN):
            code, message = reported(lambda: jobs.main(["--gpus", "0", "1"]))
        self.assertEqual(code, 2)
        self.assertIn("in the environment this is worker 2 of 4. Start one", message)


class KubernetesTest(unittest.TestCase):
    """The manifests in examples."""

    def test_pods_of_an_indexed_job_find_each_other(self):
        objects = manifest("indexed_job.yaml")
        spec, subdomain = objects["Job"]["spec"], objects["Service"]["metadata"]["name"]
        name = objects["Job"]["metadata"]["name"]
        self.assertEqual(spec["template"]["spec"]["subdomain"], subdomain)
        self.assertEqual(objects["Service"]["spec"]["selector"], {"job-name": name})
        self.assert_workers(spec, f"{name}-0.{subdomain}")
        selector = objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]
        self.assertEqual(selector, {"job-name": name})

    def test_pods_of_a_jobset_find_each_other(self):
        objects = manifest("jobset.yaml")
        name = objects["JobSet"]["metadata"]["name"]
        (replicated,) = objects["JobSet"]["spec"]["replicatedJobs"]
        # As JobSet names its Pods, and the Service that it makes.
        host = f"{name}-{replicated['name']}-0-0.{name}"
        self.assert_workers(replicated["template"]["spec"], host)
        selector = objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]
        self.assertEqual(selector, {"jobset.sigs.k8s.io/jobset-name": name})

    def assert_workers(self, spec: dict, chief: str) -> None:
        """Check that each Pod of a Job finds its place in the cluster, by its index."""
        count = spec["completions"]
        self.assertEqual(spec["parallelism"], count)
        (container,) = spec["template"]["spec"]["containers"]
        train.parse(container["command"][2:])
        environ = {each["name"]: each["value"] for each in container["env"]}
        workers = (f"{chief}:2222", *("",) * (count - 1))
        for index in range(count):
            # Kubernetes sets it in each Pod of an indexed Job.
            cluster = find_cluster(environ | {"JOB_COMPLETION_INDEX": str(index)})
            self.assertEqual(cluster, Cluster(workers, index))


def manifest(name: str) -> dict[str, dict]:
    """Return the objects of a manifest by their kinds."""
    path = Path(__file__).parents[1] / "examples/kubernetes" / name
    return {each["kind"]: each for each in yaml.safe_load_all(path.read_text("utf-8"))}


class SlurmTest(unittest.TestCase):
    def test_each_task_of_a_step_has_a_host_and_a_port(self):
        # 8000 places of two ports: 15000 + 2 * (31234 % 8000).
        workers = ("n2:29468", "n2:29469", "n9:29468", "n9:29469", "n10:29468")
        self.assertEqual(find_cluster(SLURM), Cluster(workers, 4))
        actual = find_cluster({**SLURM, "SLURM_NODEID": "1", "SLURM_LOCALID": "1"})
        self.assertEqual(actual, Cluster(workers, 3))

    def test_every_task_has_its_own_index_under_any_distribution(self):
        # The order of SLURM_PROCID under the cyclic distribution.
        positions = ((0, 0), (1, 0), (2, 0), (0, 1), (1, 1))
        tasks = [{"SLURM_NODEID": str(n), "SLURM_LOCALID": str(i)} for n, i in positions]
        self.assertEqual([find_cluster(SLURM | task).index for task in tasks], [0, 2, 4, 1, 3])

    def test_steps_of_a_job_and_jobs_of_an_array_have_no_port_in_common(self):
        ports = [
            worker.rpartition(":")[2]
            for job in range(31_000, 31_064)
            for step in range(8)
            for worker in find_cluster(
                SLURM | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}
            ).workers[:2]
        ]
        self.assertEqual(len(set(ports)), len(ports))
        self.assertLess(max(map(int, ports)), 32_768)

    def test_ports_that_srun_reserved_are_used(self):
        cluster = find_cluster(SLURM | {"SLURM_STEP_RESV_PORTS": "12000,12007-12008"})
        workers = ("n2:12000", "n2:12007", "n9:12000", "n9:12007", "n10:12000")
        self.assertEqual(cluster.workers, workers)
        with self.assertRaisesRegex(PlacementError, "1 ports for 2 tasks .* --resv-ports=2"):
            find_cluster(SLURM | {"SLURM_STEP_RESV_PORTS": "12000"})

    def test_a_launcher_within_a_step_takes_precedence_unless_it_counts_the_same_tasks(self):
        workers = find_cluster(SLURM | TORCHRUN).workers
        self.assertEqual(workers, ("n1:29500", "", "", ""))
        same = {"PMI_SIZE": "5", "PMI_RANK": "4"}
        self.assertEqual(find_cluster(SLURM | same), find_cluster(SLURM))
        with self.assertRaisesRegex(PlacementError, "PMI_SIZE is '10', .* MASTER_ADDR is missing"):
            find_cluster(SLURM | {"PMI_SIZE": "10", "PMI_RANK": "4"})

    def test_tf_config_takes_precedence(self):
        workers = find_cluster({**SLURM, **tf_config({"worker": ["a:1", "b:2"]})}).workers
        self.assertEqual(workers, ("a:1", "b:2"))
        self.assertIsNone(find_cluster({**SLURM, **tf_config({"worker": ["a:1"]})}))

    def test_allocation_without_a_step_or_with_one_task_is_not_a_cluster(self):
        single = {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}
        single |= {"SLURM_STEP_NODELIST": "n2", "SLURM_NODEID": "0"}
        allocation = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}
        self.assertEqual((find_cluster(SLURM | single), find_cluster(allocation)), (None, None))

    def test_node_lists_are_expanded_in_their_order(self):
        self.assertEqual(expand_hosts("n[9-11],gpu"), ["n9", "n10", "n11", "gpu"])
        actual = expand_hosts("r[1-2]n[08-09]-ib")
        self.assertEqual(actual, ["r1n08-ib", "r1n09-ib", "r2n08-ib", "r2n09-ib"])
        self.assertEqual(expand_counts("2(x3),1"), [2, 2, 2, 1])
        for text in ("", "n[1", "n[1-]", "n[a-b]", "n[3-1]", "a,,b"):
            with self.subTest(text=text), self.assertRaises(PlacementError):
                expand_hosts(text)
        for text in ("", "2(x)", "two"):
            with self.subTest(text=text), self.assertRaises(PlacementError):
                expand_counts(text)

    def test_contradictions_are_rejected(self):
        faults = {
            "there are 4 tasks": {"SLURM_STEP_NUM_TASKS": "4"},
            "task 1 of node 2": {"SLURM_LOCALID": "1"},
            "task 0 of node 3": {"SLURM_NODEID": "3"},
            "SLURM_JOB_ID is 'x'": {"SLURM_JOB_ID": "x"},
            "SLURM_LOCALID is '', not a number": {"SLURM_LOCALID": ""},
            "SLURM_STEP_ID is 'x'": {"SLURM_STEP_ID": "x"},
        }
        for reason, fault in faults.items():
            with self.subTest(reason=reason), self.assertRaisesRegex(PlacementError, reason):
                find_cluster(SLURM | fault)


class JobTokenTest(unittest.TestCase):
    def test_flag_of_earlier_versions_is_an_error_that_says_what_to_do(self):
        for command in (launch, check_distributed):
            reason = "--job-token' is not a flag: it was removed; docs/guides/distributed.md"
            with self.assertRaisesRegex(ConfigError, reason):
                command.parse(["--job-token", "secret"])
