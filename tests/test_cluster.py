"""Cluster discovery from the environment, and the rendezvous of its workers."""

import json
import re
import socket
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import yaml

from myxtts.commands import train
from myxtts.distributed import rendezvous as rendezvous_module
from myxtts.distributed.cluster import Cluster, expand_counts, expand_hosts, find_cluster
from myxtts.distributed.launcher import local_workers
from myxtts.errors import PlacementError

SLURM = {
    "SLURM_JOB_ID": "31234",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NODELIST": "n[2,9-10]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_NODEID": "2",
    "SLURM_LOCALID": "0",
}


def tf_config(jobs, kind="worker", index=0) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": jobs, "task": {"type": kind, "index": index}})}


class TfConfigTest(unittest.TestCase):
    def test_workers_are_numbered_in_the_order_of_their_addresses(self):
        cluster = find_cluster(tf_config({"worker": ["a:1", "b:2"]}, index=1))
        self.assertEqual(cluster, Cluster(("a:1", "b:2"), 1))
        self.assertEqual((cluster.count, cluster.is_chief, cluster.address), (2, False, "b:2"))
        self.assertEqual((cluster.name(), cluster.name(0)), ("worker 1 (b:2)", "worker 0 (a:1)"))

    def test_chief_is_worker_0(self):
        jobs = {"chief": ["a:1"], "worker": ["b:2", "c:3"]}
        self.assertEqual(find_cluster(tf_config(jobs, "chief")), Cluster(("a:1", "b:2", "c:3"), 0))
        self.assertEqual(find_cluster(tf_config(jobs, "worker", 1)), Cluster(("a:1", "b:2", "c:3"), 2))

    def test_tf_config_round_trips(self):
        cluster = Cluster(("a:1", "b:2"), 1)
        self.assertEqual(find_cluster({"TF_CONFIG": cluster.tf_config()}), cluster)

    def test_fewer_than_two_workers_are_not_a_cluster(self):
        for environ in ({}, {"TF_CONFIG": " "}, {"TF_CONFIG": "{}"}, tf_config({"worker": ["a:1"]})):
            with self.subTest(environ=environ):
                self.assertIsNone(find_cluster(environ))

    def test_invalid_tf_config_is_rejected_with_its_reason(self):
        two = {"worker": ["a:1", "b:2"]}
        invalid = {
            "not JSON": {"TF_CONFIG": "{'cluster'"},
            r"TF_CONFIG is \[\]": {"TF_CONFIG": "[]"},
            r"\[\] as 'cluster'": {"TF_CONFIG": '{"cluster": []}'},
            "lacks 'task'": {"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:2"]}}'},
            "job 'ps'": tf_config({**two, "ps": ["c:3"]}),
            "job 'evaluator'": tf_config({**two, "evaluator": ["c:3"]}),
            "2 chiefs": tf_config({**two, "chief": ["c:3", "d:4"]}),
            "names no worker": tf_config({"worker": []}),
            "'a:1' 2 times": tf_config({"worker": ["a:1", "a:1"]}),
            "'a', which is not host:port": tf_config({"worker": ["a", "b:2"]}),
            "port 70000": tf_config({"worker": ["a:70000", "b:2"]}),
            "7 as the address": tf_config({"worker": [7, "b:2"]}),
            "a 'ps'": tf_config(two, "ps"),
            "worker 2, but lists 2": tf_config(two, index=2),
            "worker -1": tf_config(two, index=-1),
            "\"0\" as 'index'": tf_config(two, index="0"),
            "true as 'index'": tf_config(two, index=True),
        }
        for reason, environ in invalid.items():
            with self.subTest(reason=reason), self.assertRaisesRegex(PlacementError, reason):
                find_cluster(environ)


class KubernetesTest(unittest.TestCase):
    def test_job_in_the_docs_gives_each_pod_its_index(self):
        page = (Path(__file__).parents[1] / "docs" / "guides" / "distributed.md").read_text(encoding="utf-8")
        documents = yaml.safe_load_all(re.search(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1])
        service, job, policy = documents
        spec = job["spec"]
        pod = spec["template"]["spec"]
        name, count = job["metadata"]["name"], spec["completions"]
        self.assertEqual((service["spec"]["selector"], spec["parallelism"]), ({"job-name": name}, count))
        self.assertEqual(policy["spec"]["podSelector"]["matchLabels"], {"job-name": name})
        index_variable, tf_config_variable = pod["containers"][0]["env"]
        # The second refers to the first, and Kubernetes replaces the reference.
        self.assertEqual(tf_config_variable["name"], "TF_CONFIG")
        for index in range(count):
            environ = {"TF_CONFIG": tf_config_variable["value"].replace(f"$({index_variable['name']})", str(index))}
            hosts = [f"{name}-{i}.{pod['subdomain']}:2222" for i in range(count)]  # as Kubernetes names the pods
            self.assertEqual(find_cluster(environ), Cluster(tuple(hosts), index))
        self.assertEqual(pod["subdomain"], service["metadata"]["name"])
        train.parse(pod["containers"][0]["command"][2:])


class SlurmTest(unittest.TestCase):
    def test_each_task_of_a_step_has_a_host_and_a_port(self):
        workers = ("n2:30234", "n2:30235", "n9:30234", "n9:30235", "n10:30234")  # 15000 + 31234 % 16000
        self.assertEqual(find_cluster(SLURM), Cluster(workers, 4))
        self.assertEqual(find_cluster({**SLURM, "SLURM_NODEID": "1", "SLURM_LOCALID": "1"}), Cluster(workers, 3))

    def test_every_task_has_its_own_index_under_any_distribution(self):
        positions = [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1)]  # the order of SLURM_PROCID under the cyclic distribution
        tasks = [{"SLURM_NODEID": str(node), "SLURM_LOCALID": str(local_id)} for node, local_id in positions]
        self.assertEqual([find_cluster({**SLURM, **task}).index for task in tasks], [0, 2, 4, 1, 3])

    def test_tf_config_takes_precedence(self):
        self.assertEqual(find_cluster({**SLURM, **tf_config({"worker": ["a:1", "b:2"]})}).workers, ("a:1", "b:2"))
        self.assertIsNone(find_cluster({**SLURM, **tf_config({"worker": ["a:1"]})}))

    def test_allocation_without_a_step_or_with_one_task_is_not_a_cluster(self):
        single = {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NODELIST": "n2", "SLURM_STEP_TASKS_PER_NODE": "1"}
        self.assertIsNone(find_cluster({**SLURM, **single, "SLURM_NODEID": "0"}))
        self.assertIsNone(find_cluster({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}))

    def test_node_lists_are_expanded_in_their_order(self):
        self.assertEqual(expand_hosts("n[9-11],gpu"), ["n9", "n10", "n11", "gpu"])
        self.assertEqual(expand_hosts("r[1-2]n[08-09]-ib"), ["r1n08-ib", "r1n09-ib", "r2n08-ib", "r2n09-ib"])
        self.assertEqual(expand_counts("2(x3),1"), [2, 2, 2, 1])
        for text in ("", "n[1", "n[1-]", "n[a-b]", "n[3-1]", "a,,b", "n[0-99999999]"):
            with self.subTest(text=text), self.assertRaises(PlacementError):
                expand_hosts(text)
        for text in ("", "2(x)", "two"):
            with self.subTest(text=text), self.assertRaises(PlacementError):
                expand_counts(text)

    def test_contradictions_are_rejected(self):
        faults = {
            "4 tasks": {"SLURM_STEP_NUM_TASKS": "4"},
            "task 1 of node 2": {"SLURM_LOCALID": "1"},
            "task 0 of node 3": {"SLURM_NODEID": "3"},
            "SLURM_JOB_ID is 'x'": {"SLURM_JOB_ID": "x"},
        }
        for reason, fault in faults.items():
            with self.subTest(reason=reason), self.assertRaisesRegex(PlacementError, reason):
                find_cluster({**SLURM, **fault})
        incomplete = {name: value for name, value in SLURM.items() if name != "SLURM_LOCALID"}
        with self.assertRaisesRegex(PlacementError, "SLURM_LOCALID is not set"):
            find_cluster(incomplete)


class RendezvousTest(unittest.TestCase):
    def join(self, settings, workers=None, present=None, chief_timeout_s=20.0, timeout_s=20.0) -> dict[int, str]:
        """Return the error message of each present worker, or an empty string."""
        workers = workers or local_workers(len(settings))
        self.reports: list[str] = []

        def attend(index: int) -> str:
            try:
                worker_timeout_s = timeout_s if index else chief_timeout_s
                rendezvous_module.rendezvous(
                    Cluster(workers, index), settings[index], worker_timeout_s, self.reports.append
                )
            except PlacementError as error:
                return str(error)
            return ""

        present = range(len(workers)) if present is None else present
        with ThreadPoolExecutor() as pool:
            return dict(zip(present, pool.map(attend, present), strict=True))

    def test_all_workers_are_released(self):
        self.assertEqual(self.join([{"GPUs": "0"}] * 3), {0: "", 1: "", 2: ""})

    def test_ports_are_released_afterwards(self):
        workers = local_workers(2)
        self.join([{}] * 2, workers)
        self.assertEqual(self.join([{}] * 2, workers), {0: "", 1: ""})

    def test_missing_worker_is_named_by_all_others(self):
        workers = local_workers(3)
        with mock.patch.object(rendezvous_module, "FIRST_REPORT_S", 0.6):
            ends = self.join([{}] * 3, workers, present=(0, 1), chief_timeout_s=1.5)
        for index in (0, 1):
            self.assertIn(f"worker 2 ({workers[2]}) did not arrive within 1.5 s", ends[index])
        self.assertEqual(
            [line.split(",")[0] for line in self.reports], [f"waiting        for worker 2 ({workers[2]})"] * 2
        )

    def test_missing_chief_is_named(self):
        workers = local_workers(2)
        ends = self.join([{}] * 2, workers, present=(1,), timeout_s=0.5)
        self.assertIn(f"worker 0 ({workers[0]}) did not arrive", ends[1])

    def test_differing_setting_is_reported_by_both(self):
        ends = self.join([{"--batch-size": "8"}, {"--batch-size": "16"}])
        for end in ends.values():
            self.assertRegex(end, r"worker 1 \(.*\) has --batch-size 16, but worker 0 \(.*\) has 8")

    def test_other_addresses_are_rejected(self):
        workers = local_workers(3)
        with ThreadPoolExecutor() as pool:
            chief = pool.submit(rendezvous_module.rendezvous, Cluster(workers[:2], 0), {}, 20.0)
            second_worker = pool.submit(rendezvous_module.rendezvous, Cluster((workers[0], workers[2]), 1), {}, 20.0)
            for worker in (chief, second_worker):
                self.assertIn("the same addresses", str(worker.exception()))

    def test_port_in_use_is_named(self):
        workers = local_workers(2)
        host, _, port = workers[1].rpartition(":")
        with socket.create_server((host, int(port))):
            ends = self.join([{}] * 2, workers, present=(1,))
        self.assertIn(f"cannot use port {port}", ends[1])

    def test_strangers_are_ignored(self):
        workers = local_workers(2)
        host, _, port = workers[0].rpartition(":")
        with ThreadPoolExecutor() as pool:
            chief = pool.submit(rendezvous_module.rendezvous, Cluster(workers, 0), {}, 20.0)
            for words in (b"GET / HTTP/1.1\n", b'{"worker": "x"}\n', b'{"worker": 1, "settings": 7}\n', b"[]\n", b""):
                self.knock(host, int(port), words)
            rendezvous_module.rendezvous(Cluster(workers, 1), {}, 20.0)
            self.assertIsNone(chief.result())

    @staticmethod
    def knock(host: str, port: int, words: bytes) -> None:
        while True:
            try:
                with socket.create_connection((host, port), timeout=5.0) as stranger:
                    stranger.sendall(words)
                return
            except ConnectionRefusedError:  # the chief does not listen yet
                continue


if __name__ == "__main__":
    unittest.main()
