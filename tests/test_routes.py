"""Routes: every request becomes devices and routes, or an error that says what to do."""

import itertools
import unittest

from myxtts.config.schema import PlacementConfig
from myxtts.errors import PlacementError
from myxtts.placement.routes import LogicalDevice, Route, plan_routes


def plan(gpus=0, **asked):
    return plan_routes(PlacementConfig(**asked), gpus)


def routes(gpus=0, **asked):
    return [(route.data, route.model) for route in plan(gpus, **asked).routes]


class Requests(unittest.TestCase):
    def test_nothing_asked_for_is_the_first_gpu_or_the_cpu(self):
        self.assertEqual(routes(0), [("/CPU:0", "/CPU:0")])
        self.assertEqual(plan(0).devices, (LogicalDevice("/CPU:0", None),))
        self.assertFalse(plan(0).on_gpu)
        self.assertEqual(routes(4), [("/GPU:0", "/GPU:0")])
        self.assertEqual(plan(4).devices, (LogicalDevice("/GPU:0", 0),))
        self.assertTrue(plan(4).on_gpu)

    def test_names_say_what_the_routes_are(self):
        for name, asked in (
            ("single", {}),
            ("single", {"data_gpu": 1, "model_gpu": 1}),
            ("single", {"model_gpus": (2,)}),
            ("dual", {"data_gpu": 0, "model_gpu": 1}),
            ("dual", {"data_gpu": 0, "model_gpus": (1,)}),
            ("dual, 3 replicas", {"data_gpu": 0, "model_gpus": (1, 2, 3)}),
            ("dual, 2 replicas", {"data_gpu": 0, "model_gpus": (0, 1)}),
            ("replicated", {"model_gpus": (0, 1)}),
        ):
            self.assertEqual(plan(4, **asked).name, name, asked)

    def test_each_replica_has_a_route_in_the_order_asked_for(self):
        self.assertEqual(routes(4, data_gpu=0, model_gpus=(3, 1)), [("/GPU:0", "/GPU:2"), ("/GPU:0", "/GPU:1")])
        self.assertEqual(routes(4, model_gpus=(3, 1)), [("/GPU:1", "/GPU:1"), ("/GPU:0", "/GPU:0")])
        self.assertEqual(routes(2, data_gpu=0, model_gpus=(0, 1)), [("/GPU:0", "/GPU:0"), ("/GPU:0", "/GPU:1")])

    def test_physical_gpus_in_any_order_become_logical_ones_in_theirs(self):
        for data, model in itertools.product(range(5), repeat=2):
            placement = plan(5, data_gpu=data, model_gpu=model)
            physical_of = {device.name: device.physical for device in placement.devices}
            (route,) = placement.routes
            self.assertEqual((physical_of[route.data], physical_of[route.model]), (data, model))
            # TensorFlow names visible GPUs by ascending physical index, whatever the order they are given in.
            visible = sorted({data, model})
            self.assertEqual(physical_of, {f"/GPU:{i}": gpu for i, gpu in enumerate(visible)})

    def test_simulated_gpus_are_all_made_and_keep_their_numbers(self):
        placement = plan(0, simulate_gpus=4, data_gpu=3, model_gpu=1)
        self.assertEqual(placement.routes, (Route("/CPU:3", "/CPU:1"),))
        self.assertEqual([device.name for device in placement.devices], ["/CPU:0", "/CPU:1", "/CPU:2", "/CPU:3"])
        self.assertTrue(placement.simulated)
        self.assertFalse(placement.on_gpu)

    def test_real_gpus_play_no_part_in_a_simulation(self):
        self.assertEqual(plan(0, simulate_gpus=2), plan(8, simulate_gpus=2))
        self.assertEqual(routes(8, simulate_gpus=2), [("/CPU:0", "/CPU:0")])


class Limits(unittest.TestCase):
    def limits(self, gpus=4, **asked):
        return [(d.name, d.physical, d.memory_mib) for d in plan(gpus, **asked).devices]

    def test_memory_grows_where_no_limit_is_asked_for(self):
        self.assertEqual(self.limits(data_gpu=2, model_gpu=3), [("/GPU:0", 2, None), ("/GPU:1", 3, None)])

    def test_limits_follow_the_roles_and_not_the_order_of_the_gpus(self):
        asked = {"data_gpu_memory": 1000, "model_gpu_memory": 2000}
        self.assertEqual(self.limits(data_gpu=0, model_gpu=1, **asked), [("/GPU:0", 0, 1000), ("/GPU:1", 1, 2000)])
        self.assertEqual(self.limits(data_gpu=1, model_gpu=0, **asked), [("/GPU:0", 0, 2000), ("/GPU:1", 1, 1000)])

    def test_isolation_or_one_limit_gives_the_other_its_default(self):
        for asked, expected in (
            ({"enable_memory_isolation": True}, [8192, 16384]),
            ({"data_gpu_memory": 1000}, [1000, 16384]),
            ({"model_gpu_memory": 2000}, [8192, 2000]),
        ):
            self.assertEqual([limit for *_, limit in self.limits(data_gpu=0, model_gpu=1, **asked)], expected)

    def test_one_gpu_is_split_in_two_by_limits_and_only_by_them(self):
        asked = {"data_gpu": 1, "model_gpu": 1}
        self.assertEqual(self.limits(**asked), [("/GPU:0", 1, None)])
        asked |= {"data_gpu_memory": 1000, "model_gpu_memory": 2000}
        self.assertEqual(self.limits(**asked), [("/GPU:0", 1, 1000), ("/GPU:1", 1, 2000)])
        self.assertEqual(routes(4, **asked), [("/GPU:0", "/GPU:1")])
        self.assertEqual(plan(4, **asked).name, "dual")

    def test_a_gpu_that_makes_batches_and_holds_a_replica_is_split_too(self):
        asked = {"data_gpu": 0, "model_gpus": (0, 2), "enable_memory_isolation": True}
        self.assertEqual(self.limits(**asked), [("/GPU:0", 0, 8192), ("/GPU:1", 0, 16384), ("/GPU:2", 2, 16384)])
        self.assertEqual(routes(4, **asked), [("/GPU:0", "/GPU:1"), ("/GPU:0", "/GPU:2")])

    def test_a_gpu_that_serves_both_roles_alone_has_the_models_limit(self):
        self.assertEqual(self.limits(enable_memory_isolation=True), [("/GPU:0", 0, 16384)])
        self.assertEqual(
            self.limits(model_gpus=(1, 0), model_gpu_memory=2000), [("/GPU:0", 0, 2000), ("/GPU:1", 1, 2000)]
        )

    def test_a_simulated_gpu_is_split_as_a_real_one(self):
        asked = {"simulate_gpus": 1, "data_gpu": 0, "model_gpu": 0, "enable_memory_isolation": True}
        self.assertEqual(self.limits(**asked), [("/CPU:0", 0, 8192), ("/CPU:1", 0, 16384)])


class Refusals(unittest.TestCase):
    def refusal(self, gpus=0, **asked):
        with self.assertRaises(PlacementError) as caught:
            plan(gpus, **asked)
        return str(caught.exception)

    def test_a_gpu_that_is_not_there(self):
        advice = "Leave out --data-gpu and --model-gpu to train on one device, or try the pipeline with --simulate-gpus"
        for gpus, asked, message in (
            (0, (0, 0), f"data GPU 0 was asked for, but TensorFlow sees no GPU. {advice} 2."),
            (1, (0, 1), f"model GPU 1 was asked for, but TensorFlow sees 1 GPU (index 0). {advice} 2."),
            (1, (4, 0), f"data GPU 4 was asked for, but TensorFlow sees 1 GPU (index 0). {advice} 5."),
            (3, (0, 3), f"model GPU 3 was asked for, but TensorFlow sees 3 GPUs (0 to 2). {advice} 4."),
        ):
            self.assertEqual(self.refusal(gpus, data_gpu=asked[0], model_gpu=asked[1]), message)
        self.assertEqual(
            self.refusal(2, data_gpu=0, model_gpus=(1, 5)),
            f"model GPU 5 was asked for, but TensorFlow sees 2 GPUs (0 to 1). {advice} 6.",
        )

    def test_a_simulated_gpu_that_is_not_there(self):
        self.assertEqual(
            self.refusal(8, simulate_gpus=2, data_gpu=0, model_gpu=2),
            "model GPU 2 was asked for, but --simulate-gpus 2 makes GPUs 0 to 1. Leave out --data-gpu and --model-gpu "
            "to train on one device, or try the pipeline with --simulate-gpus 3.",
        )
        self.assertEqual(
            self.refusal(simulate_gpus=1, data_gpu=0, model_gpu=1),
            "model GPU 1 was asked for, but --simulate-gpus 1 makes only GPU 0. Leave out --data-gpu and --model-gpu "
            "to train on one device, or try the pipeline with --simulate-gpus 2.",
        )

    def test_one_of_the_two_gpus_alone(self):
        rest = (
            "Give both to train on another GPU than the one that makes the batches (the same index twice for one GPU), "
            "or neither to train on GPU 0."
        )
        self.assertEqual(self.refusal(2, data_gpu=0), f"--data-gpu was given without --model-gpu. {rest}")
        self.assertEqual(self.refusal(2, model_gpu=1), f"--model-gpu was given without --data-gpu. {rest}")

    def test_both_forms_of_the_model_gpu(self):
        self.assertEqual(
            self.refusal(4, data_gpu=0, model_gpu=1, model_gpus=(1, 2)),
            "--model-gpu 1 and --model-gpus 1 2 were both given. Use one of the two.",
        )

    def test_a_gpu_named_twice(self):
        self.assertEqual(
            self.refusal(4, model_gpus=(1, 2, 1)),
            "--model-gpus 1 2 1 names a GPU twice. Each replica needs a GPU of its own.",
        )

    def test_a_limit_for_a_gpu_that_is_not_named(self):
        for gpus in (0, 2):
            self.assertEqual(
                self.refusal(gpus, data_gpu_memory=1000),
                "--data-gpu-memory was given without --data-gpu. Name the GPU that makes the batches.",
            )

    def test_a_limit_for_the_cpu(self):
        message = (
            "A memory limit was asked for, but TensorFlow sees no GPU, and the CPU has no such limit. "
            "Leave out --enable-memory-isolation and --model-gpu-memory, or make a GPU visible."
        )
        self.assertEqual(self.refusal(enable_memory_isolation=True), message)
        self.assertEqual(self.refusal(model_gpu_memory=1000), message)


if __name__ == "__main__":
    unittest.main()
