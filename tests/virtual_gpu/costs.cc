#include <algorithm>
#include <cmath>

#include "virtual_gpu.h"

namespace virtual_gpu {

using tensorflow::Tensor;

namespace {

// Figures of a GPU of speed 1; 0 takes no account. All times are multiplied by `scale`.
struct Costs {
  double scale = Number("SCALE", 1), launch_us = Number("LAUNCH_US", 0);
  double kernel_us = Number("KERNEL_US", 0), gflops = Number("GFLOPS", 0);
  double memory_gbps = Number("MEMORY_GBPS", 0), copy_us = Number("COPY_US", 0);
  double link_gbps = Number("LINK_GBPS", 0);
};

const Costs& TheCosts() {
  static const Costs costs;
  return costs;
}

// 1 Gbyte/s is 1,000 bytes in a microsecond; so are 1 Gflop/s.
double Quotient(double amount, double giga_per_s) {
  return giga_per_s > 0 ? amount / (giga_per_s * 1e3) : 0;
}

// The number of matrices in a batch of them; 1 if it is empty.
double Matrices(const Tensor& tensor) {
  double matrices = 1;
  for (int i = 0; i + 2 < tensor.dims(); ++i) matrices *= tensor.dim_size(i);
  return std::max(1.0, matrices);
}

}  // namespace

bool ComputesNothing(double bytes) {
  static const bool nothing = Number("COSTS_ONLY", 0) != 0;
  // A batch of token ids, or a table of 8,192 utterances, is less.
  return nothing && bytes > 65536;
}

double KernelUs(double flops, double bytes) {
  const Costs& costs = TheCosts();
  double work_us = std::max(Quotient(flops, costs.gflops), Quotient(bytes, costs.memory_gbps));
  return costs.scale * (costs.kernel_us + work_us);
}

double CopyUs(double bytes) {
  const Costs& costs = TheCosts();
  return costs.scale * (costs.copy_us + Quotient(bytes, costs.link_gbps));
}

double Flops(const std::string& op, const std::vector<Tensor>& inputs,
             const std::vector<Tensor>& outputs) {
  if (op == "MatMul" || op == "_FusedMatMul" || op.rfind("BatchMatMul", 0) == 0) {
    // Of [m, k] times [k, n]: 2 m n k, where k squared is (m k)(k n) / (m n).
    double size = outputs[0].NumElements() / Matrices(outputs[0]);
    if (size == 0) return 0;
    double left = inputs[0].NumElements() / Matrices(inputs[0]);
    double right = inputs[1].NumElements() / Matrices(inputs[1]);
    return 2.0 * outputs[0].NumElements() * std::sqrt(left * right / size);
  }
  if ((op == "Conv2D" || op == "_FusedConv2D") && inputs[1].dims() == 4) {
    double out_channels = std::max<double>(1, inputs[1].dim_size(3));
    return 2.0 * outputs[0].NumElements() * inputs[1].NumElements() / out_channels;
  }
  if (op.rfind("Conv2DBackprop", 0) == 0 && inputs[2].dims() == 4) {
    // Each gradient multiplies as often as the convolution; the filter is an input or the output.
    const Tensor& filter = op == "Conv2DBackpropInput" ? inputs[1] : outputs[0];
    if (filter.dims() != 4) return 0;
    double out_channels = std::max<double>(1, filter.dim_size(3));
    return 2.0 * inputs[2].NumElements() * filter.NumElements() / out_channels;
  }
  return 0;
}

void Launch(Stream* stream, const std::string& op, double flops, double bytes, Work work) {
  double launch_us = TheCosts().scale * TheCosts().launch_us;
  for (double end_us = NowUs() + launch_us; launch_us > 0 && NowUs() < end_us;) {
  }
  Chaos();
  Trace("issued", stream, "kernel", op);
  if (ComputesNothing(bytes)) work = [] {};
  stream->Add(KernelUs(flops, bytes) / stream->device->speed, std::move(work));
}

}  // namespace virtual_gpu
