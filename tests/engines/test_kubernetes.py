"""The manifests of the guide against the schemas of Kubernetes and JobSet."""

import unittest
from typing import Any

import kubernetes_validate
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

from tests.test_cluster import manifest

MAX_RESTARTS = 100


def job_of(objects: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the Job of a manifest, also if JobSet makes it."""
    if "Job" in objects:
        return objects["Job"]
    (replicated,) = objects["JobSet"]["spec"]["replicatedJobs"]
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}} | replicated[
        "template"
    ]


class ManifestTest(unittest.TestCase):
    def setUp(self):
        self.manifests = {name: manifest(name) for name in ("jobset.yaml", "indexed_job.yaml")}

    def test_objects_match_the_schemas_of_kubernetes(self):
        for name, objects in self.manifests.items():
            kinds = [value for kind, value in objects.items() if kind != "JobSet"]
            for each in (*kinds, job_of(objects)):
                with self.subTest(manifest=name, kind=each["kind"]):
                    kubernetes_validate.validate(each, "1.33", strict=True)

    def test_jobset_matches_its_definition(self):
        jobset = self.manifests["jobset.yaml"]["JobSet"]
        # Fields that the definition lacks are ignored, and so are lost.
        self.assertEqual(JobsetV1alpha2JobSet.from_dict(jobset).to_dict(), jobset)

    def test_schemas_reject_unknown_fields(self):
        objects = manifest("indexed_job.yaml")
        objects["Job"]["spec"]["backoffLimitPerPod"] = 1
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(objects["Job"], "1.33", strict=True)
        jobset = manifest("jobset.yaml")["JobSet"]
        jobset["spec"]["failurePolicy"]["maxRestart"] = 1
        self.assertNotEqual(JobsetV1alpha2JobSet.from_dict(jobset).to_dict(), jobset)

    def test_one_death_among_many_pods_counts_once(self):
        jobset = self.manifests["jobset.yaml"]
        self.assertEqual(job_of(jobset)["spec"]["backoffLimit"], 0)
        self.assertEqual(jobset["JobSet"]["spec"]["failurePolicy"]["maxRestarts"], MAX_RESTARTS)
        job = job_of(self.manifests["indexed_job.yaml"])["spec"]
        self.assertEqual(job["backoffLimitPerIndex"], MAX_RESTARTS)
        self.assertNotIn("backoffLimit", job)

    def test_a_mistake_ends_the_job_and_a_lost_worker_does_not(self):
        for name, objects in self.manifests.items():
            (rule,) = job_of(objects)["spec"]["podFailurePolicy"]["rules"]
            self.assertEqual(
                (rule["action"], rule["onExitCodes"]["values"]), ("FailJob", [2]), name
            )
            self.assertEqual(job_of(objects)["spec"]["podReplacementPolicy"], "Failed", name)
        (rule,) = self.manifests["jobset.yaml"]["JobSet"]["spec"]["failurePolicy"]["rules"]
        self.assertEqual(rule["action"], "FailJobSet")
        self.assertEqual(rule["onJobFailureReasons"], ["PodFailurePolicy"])
