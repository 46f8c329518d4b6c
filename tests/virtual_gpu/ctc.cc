#include <map>

#include "virtual_gpu.h"

namespace virtual_gpu {

using namespace tensorflow;

// Of logits, label indices, label values and lengths; see `CTCLossV2`.
enum { kLogits, kIndices, kLabels, kLengths };

absl::Status BeforeCtc(std::vector<Tensor>* inputs) {
  constexpr int kMostLabels = 255;
  std::map<int64_t, int> counts;
  auto indices = (*inputs)[kIndices].matrix<int64_t>();
  for (int64_t i = 0; i < indices.dimension(0); ++i) {
    if (++counts[indices(i, 0)] > kMostLabels) {
      return errors::Internal("cuDNN takes at most ", kMostLabels, " labels in a row");
    }
  }
  Tensor logits(DT_FLOAT, (*inputs)[kLogits].shape());
  Tensor labels(DT_INT32, (*inputs)[kLabels].shape());
  auto from = (*inputs)[kLogits].flat_inner_dims<float>();
  auto to = logits.flat_inner_dims<float>();
  int64_t classes = to.dimension(1);
  for (int64_t row = 0; row < to.dimension(0); ++row)
    for (int64_t i = 0; i < classes; ++i) to(row, i) = from(row, (i + 1) % classes);
  labels.flat<int32>() = (*inputs)[kLabels].flat<int32>() - 1;
  (*inputs)[kLogits] = logits;
  (*inputs)[kLabels] = labels;
  return absl::OkStatus();
}

void AfterCtc(const std::vector<Tensor>& inputs, const std::vector<Tensor>& results,
              std::vector<Tensor>* outputs) {
  (*outputs)[0].flat<float>() = results[0].flat<float>();
  auto from = results[1].tensor<float, 3>();
  auto to = (*outputs)[1].tensor<float, 3>();
  auto lengths = inputs[kLengths].vec<int32>();
  int64_t classes = to.dimension(2);
  for (int64_t row = 0; row < to.dimension(1); ++row) {
    for (int64_t time = 0; time < lengths(row); ++time)
      for (int64_t i = 0; i < classes; ++i) to(time, row, (i + 1) % classes) = from(time, row, i);
  }
}

}  // namespace virtual_gpu
