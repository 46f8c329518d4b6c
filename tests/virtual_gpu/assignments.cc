#include <cstring>

#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "virtual_gpu.h"

namespace virtual_gpu {

using namespace tensorflow;

namespace {

constexpr char kAssign[] = "AssignVariableOp", kAdd[] = "AssignAddVariableOp",
               kSubtract[] = "AssignSubVariableOp";

template <class T>
void Add(Tensor variable, const Tensor& change, bool subtract) {
  auto values = variable.flat<T>();
  if (subtract) {
    values -= change.flat<T>();
  } else {
    values += change.flat<T>();
  }
}

using Addition = void (*)(Tensor, const Tensor&, bool);

Addition AdditionOf(DataType type) {
  if (type == DT_FLOAT) return Add<float>;
  if (type == DT_DOUBLE) return Add<double>;
  if (type == DT_HALF) return Add<Eigen::half>;
  if (type == DT_BFLOAT16) return Add<bfloat16>;
  if (type == DT_INT64) return Add<int64_t>;
  return nullptr;
}

void CopyOnStream(Stream* stream, const Tensor& to, const Tensor& from) {
  size_t bytes = from.TotalBytes();
  char* target = StreamAddress(to.data());
  char* source = StreamAddress(from.data());
  Launch(stream, kAssign, 0, 2.0 * bytes, [=] { memcpy(target, source, bytes); });
}

// Gives a variable a value: the memory of the value itself, if nobody else has it.
void AssignValue(bool validates_shape, OpKernelContext* context, Stream* stream) {
  const Tensor& value = context->input(1);
  core::RefCountPtr<Var> variable;
  auto create = [&](Var** created) {
    *created = new Var(value.dtype());
    return absl::OkStatus();
  };
  OP_REQUIRES_OK(context, LookupOrCreateResource<Var>(context, HandleFromInput(context, 0),
                                                      &variable, create));
  mutex_lock lock(*variable->mu());
  Tensor* current = variable->tensor();
  bool has_shape = variable->is_initialized && current->shape() == value.shape();
  OP_REQUIRES(context, has_shape || !validates_shape || !variable->is_initialized,
              errors::InvalidArgument("Trying to assign to variable with tensor with wrong shape"));
  AllocatorAttributes attributes;
  attributes.set_gpu_compatible(true);
  attributes.set_nic_compatible(true);
  auto forwarded = context->forward_input(1, OpKernelContext::Params::kNoReservation, value.dtype(),
                                          value.shape(), DEVICE_MEMORY, attributes);
  if (forwarded) {
    *current = *forwarded;
  } else {
    if (!has_shape || !current->RefCountIsOne()) {
      Tensor memory;
      OP_REQUIRES_OK(context,
                     context->allocate_temp(value.dtype(), value.shape(), &memory, attributes));
      *current = memory;
    }
    CopyOnStream(stream, *current, value);
  }
  variable->is_initialized = true;
}

void AddValue(bool subtract, OpKernelContext* context, Stream* stream) {
  const Tensor& value = context->input(1);
  core::RefCountPtr<Var> variable;
  OP_REQUIRES_OK(context, LookupResource(context, HandleFromInput(context, 0), &variable));
  mutex_lock lock(*variable->mu());
  Tensor* current = variable->tensor();
  OP_REQUIRES(context, current->shape() == value.shape(),
              errors::InvalidArgument("Cannot update variable: shapes must be equal"));
  if (!current->RefCountIsOne()) {  // Somebody still reads the former value.
    Tensor copy;
    OP_REQUIRES_OK(context, context->allocate_temp(current->dtype(), current->shape(), &copy));
    CopyOnStream(stream, copy, *current);
    *current = copy;
  }
  Addition add = AdditionOf(value.dtype());
  Tensor to = OnStream(*current), change = OnStream(value);
  Launch(stream, kAdd, 0, 3.0 * value.TotalBytes(), [=] { add(to, change, subtract); });
}

}  // namespace

bool IsAssignment(const std::string& op, DataType type) {
  if (op == kAssign) return IsPlain(type);
  return (op == kAdd || op == kSubtract) && AdditionOf(type) != nullptr;
}

void Assign(const std::string& op, bool validates_shape, OpKernelContext* context, Stream* stream) {
  if (op == kAssign) {
    AssignValue(validates_shape, context, stream);
  } else {
    AddValue(op == kSubtract, context, stream);
  }
}

}  // namespace virtual_gpu
