"""Settings become devices and routes, or an error that suggests a solution."""

import itertools
import unittest

from myxtts.config.schema import PlacementConfig
from myxtts.errors import PlacementError
from myxtts.placement.routes import LogicalDevice, Route, plan_routes


def plan(gpus=0, **settings):
    return plan_routes(PlacementConfig(**settings), gpus)


def routes(gpus=0, **settings):
    return [(*route.data_devices, route.model) for route in plan(gpus, **settings).routes]


class RouteTest(unittest.TestCase):
    def test_default_is_the_first_gpu_or_the_cpu(self):
        self.assertEqual(routes(0), [("/CPU:0", "/CPU:0")])
        self.assertEqual(plan(0).devices, (LogicalDevice("/CPU:0", None),))
        self.assertFalse(plan(0).on_gpu)
        self.assertEqual(routes(4), [("/GPU:0", "/GPU:0")])
        self.assertEqual(plan(4).devices, (LogicalDevice("/GPU:0", 0),))
        self.assertTrue(plan(4).on_gpu)

    def test_name_describes_the_routes(self):
        for name, settings in (
            ("single", {}),
            ("single", {"data_gpu": 1, "model_gpu": 1}),
            ("single", {"model_gpus": (2,)}),
            ("dual", {"data_gpu": 0, "model_gpu": 1}),
            ("dual", {"data_gpu": 0, "model_gpus": (1,)}),
            ("dual, 3 replicas", {"data_gpu": 0, "model_gpus": (1, 2, 3)}),
            ("dual, 2 replicas", {"data_gpu": 0, "model_gpus": (0, 1)}),
            ("dual", {"data_gpus": (0,), "model_gpu": 1}),
            ("dual, 2 producers", {"data_gpus": (0, 1), "model_gpu": 2}),
            ("dual, 2 producers, 2 replicas", {"data_gpus": (0, 1), "model_gpus": (2, 3)}),
            ("replicated", {"model_gpus": (0, 1)}),
        ):
            self.assertEqual(plan(4, **settings).name, name, settings)

    def test_replicas_keep_the_order_of_model_gpus(self):
        actual = routes(4, data_gpu=0, model_gpus=(3, 1))
        self.assertEqual(actual, [("/GPU:0", "/GPU:2"), ("/GPU:0", "/GPU:1")])
        self.assertEqual(routes(4, model_gpus=(3, 1)), [("/GPU:1", "/GPU:1"), ("/GPU:0", "/GPU:0")])
        actual = routes(2, data_gpu=0, model_gpus=(0, 1))
        self.assertEqual(actual, [("/GPU:0", "/GPU:0"), ("/GPU:0", "/GPU:1")])

    def test_several_data_gpus_feed_every_replica_in_the_order_given(self):
        self.assertEqual(routes(4, data_gpus=(3, 0), model_gpu=1), [("/GPU:2", "/GPU:0", "/GPU:1")])
        feeding_two = [("/GPU:0", "/GPU:1", "/GPU:2"), ("/GPU:0", "/GPU:1", "/GPU:3")]
        self.assertEqual(routes(4, data_gpus=(0, 1), model_gpus=(2, 3)), feeding_two)
        self.assertEqual(routes(2, data_gpus=(0, 1), model_gpu=1), [("/GPU:0", "/GPU:1", "/GPU:1")])
        self.assertEqual(plan(2, data_gpus=(0,), model_gpu=1), plan(2, data_gpu=0, model_gpu=1))

    def test_logical_gpus_are_numbered_by_physical_index(self):
        for data, model in itertools.product(range(5), repeat=2):
            placement = plan(5, data_gpu=data, model_gpu=model)
            physical_of = {device.name: device.physical for device in placement.devices}
            (route,) = placement.routes
            self.assertEqual((physical_of[route.data], physical_of[route.model]), (data, model))
            # TensorFlow names visible GPUs by ascending physical index, regardless of their given
            # order.
            visible = sorted({data, model})
            self.assertEqual(physical_of, {f"/GPU:{i}": gpu for i, gpu in enumerate(visible)})

    def test_all_simulated_gpus_exist_and_keep_their_indices(self):
        placement = plan(0, simulate_gpus=4, data_gpu=3, model_gpu=1)
        self.assertEqual(placement.routes, (Route("/CPU:3", "/CPU:1"),))
        names = [device.name for device in placement.devices]
        self.assertEqual(names, ["/CPU:0", "/CPU:1", "/CPU:2", "/CPU:3"])
        self.assertTrue(placement.simulated)
        self.assertFalse(placement.on_gpu)

    def test_simulation_ignores_real_gpus(self):
        self.assertEqual(plan(0, simulate_gpus=2), plan(8, simulate_gpus=2))
        self.assertEqual(routes(8, simulate_gpus=2), [("/CPU:0", "/CPU:0")])


class MemoryLimitTest(unittest.TestCase):
    def limits(self, gpus=4, **settings):
        return [(d.name, d.physical, d.memory_mib) for d in plan(gpus, **settings).devices]

    def test_memory_grows_without_a_limit(self):
        actual = self.limits(data_gpu=2, model_gpu=3)
        self.assertEqual(actual, [("/GPU:0", 2, None), ("/GPU:1", 3, None)])

    def test_limits_follow_roles_not_gpu_order(self):
        settings = {"data_gpu_memory": 1000, "model_gpu_memory": 2000}
        actual = self.limits(data_gpu=0, model_gpu=1, **settings)
        self.assertEqual(actual, [("/GPU:0", 0, 1000), ("/GPU:1", 1, 2000)])
        actual = self.limits(data_gpu=1, model_gpu=0, **settings)
        self.assertEqual(actual, [("/GPU:0", 0, 2000), ("/GPU:1", 1, 1000)])

    def test_isolation_or_one_limit_sets_the_other_to_its_default(self):
        for settings, expected in (
            ({"enable_memory_isolation": True}, [8192, 16384]),
            ({"data_gpu_memory": 1000}, [1000, 16384]),
            ({"model_gpu_memory": 2000}, [8192, 2000]),
        ):
            actual = [limit for *_, limit in self.limits(data_gpu=0, model_gpu=1, **settings)]
            self.assertEqual(actual, expected)

    def test_one_gpu_is_split_in_two_only_by_limits(self):
        settings = {"data_gpu": 1, "model_gpu": 1}
        self.assertEqual(self.limits(**settings), [("/GPU:0", 1, None)])
        settings |= {"data_gpu_memory": 1000, "model_gpu_memory": 2000}
        self.assertEqual(self.limits(**settings), [("/GPU:0", 1, 1000), ("/GPU:1", 1, 2000)])
        self.assertEqual(routes(4, **settings), [("/GPU:0", "/GPU:1")])
        self.assertEqual(plan(4, **settings).name, "dual")

    def test_data_gpu_that_holds_a_replica_is_split(self):
        settings = {"data_gpu": 0, "model_gpus": (0, 2), "enable_memory_isolation": True}
        actual = self.limits(**settings)
        self.assertEqual(actual, [("/GPU:0", 0, 8192), ("/GPU:1", 0, 16384), ("/GPU:2", 2, 16384)])
        self.assertEqual(routes(4, **settings), [("/GPU:0", "/GPU:1"), ("/GPU:0", "/GPU:2")])

    def test_each_data_gpu_has_the_limit(self):
        settings = {
            "data_gpus": (0, 2),
            "model_gpu": 1,
            "data_gpu_memory": 1000,
            "model_gpu_memory": 2000,
        }
        actual = self.limits(**settings)
        self.assertEqual(actual, [("/GPU:0", 0, 1000), ("/GPU:1", 1, 2000), ("/GPU:2", 2, 1000)])

    def test_unsplit_gpu_with_both_roles_has_the_model_limit(self):
        self.assertEqual(self.limits(enable_memory_isolation=True), [("/GPU:0", 0, 16384)])
        actual = self.limits(model_gpus=(1, 0), model_gpu_memory=2000)
        self.assertEqual(actual, [("/GPU:0", 0, 2000), ("/GPU:1", 1, 2000)])

    def test_simulated_gpu_is_split_like_a_real_one(self):
        settings = {
            "simulate_gpus": 1,
            "data_gpu": 0,
            "model_gpu": 0,
            "enable_memory_isolation": True,
        }
        self.assertEqual(self.limits(**settings), [("/CPU:0", 0, 8192), ("/CPU:1", 0, 16384)])


def advice(simulated):
    return (
        "A run without --data-gpu, --data-gpus, --model-gpu and --model-gpus (data_gpu, data_gpus,"
        " model_gpu and model_gpus in a file of --config) trains on one device; --simulate-gpus"
        f" {simulated} tries the pipeline on the CPU."
    )


class ErrorTest(unittest.TestCase):
    def error_of(self, gpus=0, **settings):
        with self.assertRaises(PlacementError) as caught:
            plan(gpus, **settings)
        return str(caught.exception)

    def test_missing_gpu_is_rejected(self):
        for gpus, (data, model), message in (
            (0, (0, 0), f"data GPU 0 was requested, but TensorFlow sees no GPU. {advice(2)}"),
            (
                1,
                (0, 1),
                f"model GPU 1 was requested, but TensorFlow sees 1 GPU (index 0). {advice(2)}",
            ),
            (
                1,
                (4, 0),
                f"data GPU 4 was requested, but TensorFlow sees 1 GPU (index 0). {advice(5)}",
            ),
            (
                3,
                (0, 3),
                f"model GPU 3 was requested, but TensorFlow sees 3 GPUs (0 to 2). {advice(4)}",
            ),
        ):
            self.assertEqual(self.error_of(gpus, data_gpu=data, model_gpu=model), message)
        self.assertEqual(
            self.error_of(2, data_gpu=0, model_gpus=(1, 5)),
            f"model GPU 5 was requested, but TensorFlow sees 2 GPUs (0 to 1). {advice(6)}",
        )
        self.assertEqual(
            self.error_of(2, data_gpus=(0, 2), model_gpu=1),
            f"data GPU 2 was requested, but TensorFlow sees 2 GPUs (0 to 1). {advice(3)}",
        )

    def test_missing_replica_gpu_names_the_flag_that_was_given(self):
        self.assertIn("--model-gpus (data_gpu, data_gpus", self.error_of(0, model_gpus=(0, 1)))

    def test_missing_simulated_gpu_is_rejected(self):
        self.assertEqual(
            self.error_of(8, simulate_gpus=2, data_gpu=0, model_gpu=2),
            "model GPU 2 was requested, but --simulate-gpus 2 makes GPUs 0 to 1. " + advice(3),
        )
        self.assertEqual(
            self.error_of(simulate_gpus=1, data_gpu=0, model_gpu=1),
            "model GPU 1 was requested, but --simulate-gpus 1 makes only GPU 0. " + advice(2),
        )

    def test_only_one_of_data_gpu_and_model_gpu_is_rejected(self):
        rest = (
            "Give both to make batches on one GPU and train on another (the same index twice for"
            " one GPU), or neither to train on GPU 0."
        )
        actual = self.error_of(2, data_gpu=0)
        self.assertEqual(actual, f"--data-gpu was given without --model-gpu. {rest}")
        actual = self.error_of(2, model_gpu=1)
        self.assertEqual(actual, f"--model-gpu was given without --data-gpu. {rest}")
        actual = self.error_of(2, data_gpus=(0, 1))
        self.assertEqual(actual, f"--data-gpus was given without --model-gpu. {rest}")

    def test_one_gpu_and_a_list_for_the_same_role_are_rejected(self):
        self.assertEqual(
            self.error_of(4, data_gpu=0, model_gpu=1, model_gpus=(1, 2)),
            "--model-gpu 1 and --model-gpus 1 2 were both given. Use one of the two.",
        )

        self.assertEqual(
            self.error_of(4, data_gpu=0, data_gpus=(0, 1), model_gpu=2),
            "--data-gpu 0 and --data-gpus 0 1 were both given. Use one of the two.",
        )

    def test_gpu_given_twice_is_rejected(self):
        self.assertEqual(
            self.error_of(4, data_gpus=(0, 0), model_gpu=1),
            "--data-gpus 0 0 names a GPU twice. Each producer needs its own GPU.",
        )
        self.assertEqual(
            self.error_of(4, model_gpus=(1, 2, 1)),
            "--model-gpus 1 2 1 names a GPU twice. Each replica needs its own GPU.",
        )

    def test_memory_limit_without_data_gpu_is_rejected(self):
        for gpus in (0, 2):
            self.assertEqual(
                self.error_of(gpus, data_gpu_memory=1000),
                "--data-gpu-memory was given without --data-gpu. Name the GPU that makes the"
                " batches.",
            )

    def test_memory_limit_for_the_cpu_is_rejected(self):
        message = (
            "a memory limit was set, but TensorFlow sees no GPU, and the CPU has no such limit."
            " Leave out --enable-memory-isolation and --model-gpu-memory (or give"
            " --model-gpu-memory null, if the run's config.yaml has it), or make a GPU visible."
        )
        self.assertEqual(self.error_of(enable_memory_isolation=True), message)
        self.assertEqual(self.error_of(model_gpu_memory=1000), message)


if __name__ == "__main__":
    unittest.main()
