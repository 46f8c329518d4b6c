#define EIGEN_USE_THREADS

#include "tensorflow/c/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <unordered_map>

#include "tensorflow/c/experimental/grappler/grappler.h"
#include "tensorflow/c/experimental/stream_executor/stream_executor.h"
#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/node_properties.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_def_util.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/tensor_float_32_utils.h"
#include "virtual_gpu.h"

namespace virtual_gpu {

using namespace tensorflow;

namespace {

constexpr char kCtc[] = "CTCLossV2", kCtcOfCpu[] = "CTCLoss";

// The inputs whose memory an output of an operation may take: its kernels compute each element from
// the elements at the same place. CUDA's kernels do so too, and memory peaks depend on it.
std::vector<int> ReusableInputs(const std::string& op, int inputs) {
  static const std::string operations =
      " Abs Add AddN AddV2 BiasAdd Ceil Cos Div DivNoNan Elu EluGrad Erf Erfc Exp Expm1 Floor Inv"
      " InvGrad LeakyRelu Log Log1p LogSoftmax Maximum Minimum Mul MulNoNan Neg Pow RealDiv"
      " Reciprocal Relu Relu6 Relu6Grad ReluGrad Rint Round Rsqrt RsqrtGrad Selu Sigmoid Sign"
      " SigmoidGrad Sin Softmax Softplus SoftplusGrad Softsign Sqrt SqrtGrad Square Sub"
      " SquaredDifference Tanh TanhGrad ";
  if (operations.find(" " + op + " ") == std::string::npos) return {};
  return inputs > 1 ? std::vector{0, 1} : std::vector{0};
}

// Products that GPUs since Ampere compute of float32 rounded to TF32.
bool RoundsToTF32(const std::string& op) {
  if (Number("TF32", 0) == 0) return false;
  return op.rfind("MatMul", 0) == 0 || op.rfind("BatchMatMul", 0) == 0 ||
         op.rfind("Conv", 0) == 0 || op.rfind("_FusedMatMul", 0) == 0 ||
         op.rfind("_FusedConv", 0) == 0;
}

// Returns a copy with 10 bits of mantissa, rounded to nearest, ties to even.
Tensor InTF32(const Tensor& tensor) {
  if (tensor.dtype() != DT_FLOAT) return tensor;
  Tensor rounded(DT_FLOAT, tensor.shape());
  auto* from = static_cast<const uint32_t*>(tensor.data());
  auto* to = static_cast<uint32_t*>(rounded.data());
  for (int64_t i = 0; i < tensor.NumElements(); ++i)
    to[i] = (from[i] + 0xfff + (from[i] >> 13 & 1)) & ~0x1fffu;
  return rounded;
}

// Memory that somebody else owns. OwnsMemory forbids a kernel to write over it.
class Alias : public TensorBuffer {
 public:
  Alias(void* address, size_t bytes) : TensorBuffer(address), bytes_(bytes) {}
  size_t size() const override { return bytes_; }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(AllocationDescription*) const override {}
  bool OwnsMemory() const override { return false; }

 private:
  const size_t bytes_;
};

// Gives the CPU's kernel the memory of an output that the launch allocated. Should the kernel ask
// for another size, it gets memory of the host, and the call fails for the wrong shape.
class OutputMemory : public Allocator {
 public:
  explicit OutputMemory(const Tensor& output)
      : address_(output.data()), bytes_(output.TotalBytes()) {}
  std::string Name() override { return "output of a virtual GPU"; }
  void* AllocateRaw(size_t alignment, size_t bytes) override {
    if (bytes != bytes_ || is_taken_) return cpu_allocator()->AllocateRaw(alignment, bytes);
    is_taken_ = true;
    return address_;
  }
  void DeallocateRaw(void* memory) override {
    if (memory != address_) cpu_allocator()->DeallocateRaw(memory);
  }

 private:
  void* const address_;
  const size_t bytes_;
  bool is_taken_ = false;
};

// Of the call that this thread computes: OutputMemory of each output.
thread_local std::vector<OutputMemory>* outputs_of_thread = nullptr;

// The attributes of the memory of an output; the upper eight bits are for the device to use.
AllocatorAttributes NumberedOutput(int index) {
  AllocatorAttributes attributes;
  attributes.value = (index + 1) << 24;
  return attributes;
}

// Does at once what a kernel gives to other threads: to wake one takes longer than most kernels. It
// has as many as the CPU, by which kernels divide sums, so that results are the CPU's.
struct OneThread : thread::ThreadPoolInterface {
  explicit OneThread(int threads) : workers{threads, &pool} {}
  void Schedule(std::function<void()> work) override { work(); }
  int NumThreads() const override { return workers.num_threads; }
  int CurrentThreadId() const override { return -1; }

  DeviceBase::CpuWorkerThreads workers;
  thread::ThreadPool pool{this};
  Eigen::ThreadPoolDevice eigen{this, NumThreads()};
};

// The device that a CPU kernel sees when a stream runs it: the thread is that of the stream,
// temporary memory is the host's, and outputs are where the launch allocated them.
class StreamDevice : public DeviceBase {
 public:
  explicit StreamDevice(DeviceBase* device) : DeviceBase(device->env()), device_(device) {
    static auto* one = new OneThread(device->tensorflow_cpu_worker_threads()->num_threads);
    set_tensorflow_cpu_worker_threads(&one->workers);
    set_eigen_cpu_device(&one->eigen);
  }
  Allocator* GetAllocator(AllocatorAttributes attributes) override {
    int number = attributes.value >> 24;
    if (number == 0 || !outputs_of_thread) return cpu_allocator();
    return &(*outputs_of_thread)[number - 1];
  }
  const DeviceAttributes& attributes() const override { return device_->attributes(); }
  const std::string& name() const override { return device_->name(); }

 private:
  DeviceBase* const device_;
};

// Returns the compute stream on which an operation runs.
Stream* StreamOf(OpKernelContext* context) {
  TF_Status* status = TF_NewStatus();
  SP_Stream stream = TF_GetStream(reinterpret_cast<TF_OpKernelContext*>(context), status);
  bool is_found = TF_GetCode(status) == TF_OK;
  TF_DeleteStatus(status);
  return is_found ? reinterpret_cast<Stream*>(stream) : nullptr;
}

// ------------------------------------------------------------------------------- freed memory

struct PoisonedAllocator {
  Stream* compute;
  void (*free)(Allocator*, void*);
};

std::mutex poisoned_mutex;
// Held by who gives memory back, and by host code that takes some and writes to it at once: nothing
// of a stream may still be about to use or poison what it gets.
std::recursive_mutex freeing_mutex;
std::atomic<int> queued_poisons{0};

std::map<Allocator*, PoisonedAllocator>& PoisonedAllocators() {
  static auto* allocators = new std::map<Allocator*, PoisonedAllocator>;
  return *allocators;
}

void PoisonAndFree(Allocator* allocator, void* memory) {
  std::unique_lock<std::mutex> lock(poisoned_mutex);
  PoisonedAllocator poisoned = PoisonedAllocators()[allocator];
  lock.unlock();
  std::lock_guard<std::recursive_mutex> freeing(freeing_mutex);
  if (memory) {
    char* address = StreamAddress(memory);
    size_t bytes = allocator->RequestedSize(memory);
    ++queued_poisons;
    poisoned.compute->Add(0, [=] {
      Poison(address, bytes);
      --queued_poisons;
    });
  }
  poisoned.free(allocator, memory);
}

// Poisons what is given back to the BFC allocator of a device, in the order of its compute stream;
// memory that was never used is poisoned when it is mapped. TensorFlow has no hook for it, so the
// object gets a copy of its table of virtual functions (in the ABI of g++ on Linux, where a pointer
// to a virtual member function is its offset plus one), in which DeallocateRaw is another function.
// Two words before the table describe the type.
void PoisonFreedMemory(Allocator* allocator, Stream* compute) {
  std::lock_guard<std::mutex> lock(poisoned_mutex);
  if (PoisonedAllocators().count(allocator)) return;
  constexpr int kWordsBefore = 2, kFunctions = 64;
  void (Allocator::*deallocate)(void*) = &Allocator::DeallocateRaw;
  size_t offset;
  memcpy(&offset, &deallocate, sizeof offset);
  size_t slot = (offset - 1) / sizeof(void*);
  void*** table = reinterpret_cast<void***>(allocator);
  void** copy = new void*[kWordsBefore + kFunctions] + kWordsBefore;
  memcpy(copy - kWordsBefore, *table - kWordsBefore, (kWordsBefore + kFunctions) * sizeof(void*));
  PoisonedAllocators()[allocator] = {compute,
                                     reinterpret_cast<void (*)(Allocator*, void*)>(copy[slot])};
  copy[slot] = reinterpret_cast<void*>(&PoisonAndFree);
  *table = copy;
}

}  // namespace

bool IsPlain(DataType type) { return !IsRefType(type) && DataTypeCanUseMemcpy(type); }

Tensor OnStream(const Tensor& tensor) {
  if (tensor.NumElements() == 0) return tensor;
  auto* buffer = new Alias(StreamAddress(tensor.data()), tensor.TotalBytes());
  Tensor alias(tensor.dtype(), tensor.shape(), buffer);
  buffer->Unref();
  return alias;
}

namespace {

// ------------------------------------------------------------------------------------- kernels

// What calls need of a kernel, also those that are still queued when TensorFlow destroys it.
struct Shared {
  std::string op;
  std::unique_ptr<OpKernel> cpu_kernel;
  std::shared_ptr<const NodeProperties> properties;
  StreamDevice device;
  std::vector<AllocatorAttributes> input_attributes, output_attributes;
  bool rounds_to_tf32;

  // Computes the outputs, into `memory` or into memory of the host without it.
  absl::Status Compute(const std::vector<Tensor>& inputs, std::vector<OutputMemory>* memory,
                       std::vector<Tensor>* outputs) {
    std::vector<TensorValue> values;
    for (const Tensor& input : inputs) values.emplace_back(const_cast<Tensor*>(&input));
    OpKernelContext::Params params;
    params.op_kernel = cpu_kernel.get();
    params.device = &device;
    params.inputs = values;
    params.input_alloc_attrs = input_attributes;
    params.output_attr_array = output_attributes.data();
    OpKernelContext context(&params, cpu_kernel->num_outputs());
    outputs_of_thread = memory;
    cpu_kernel->Compute(&context);
    outputs_of_thread = nullptr;
    for (int i = 0; i < context.num_outputs(); ++i) {
      std::unique_ptr<Tensor> output(context.release_output(i).tensor);
      outputs->push_back(output ? *output : Tensor());
    }
    return context.status();
  }
};

// A call of a kernel, as the stream gets it.
struct Call {
  std::shared_ptr<Shared> shared;
  std::vector<Tensor> inputs, outputs;
  Stream* stream;

  void Run() {
    if (!shared) return;
    absl::Status status = Compute();
    Trace("done", stream, "kernel", shared->op);
    // Where other kernels compute nothing, indices may be wrong.
    if (status.ok() || ComputesNothing(HUGE_VAL)) return;
    // CUDA has no way back either: TensorFlow aborts for an error on a stream.
    fprintf(stderr, "virtual GPU: %s failed on GPU %d: %s\n", shared->op.c_str(),
            stream->device->ordinal, std::string(status.message()).c_str());
    abort();
  }

 private:
  absl::Status Compute() {
    // Results give their memory back to it, so it is there until they are gone.
    std::vector<OutputMemory> memory(outputs.begin(), outputs.end());
    std::vector<Tensor> results;
    if (shared->op == kCtc) {
      TF_RETURN_IF_ERROR(BeforeCtc(&inputs));
      TF_RETURN_IF_ERROR(shared->Compute(inputs, nullptr, &results));
      AfterCtc(inputs, results, &outputs);
      return absl::OkStatus();
    }
    if (shared->rounds_to_tf32 && tensor_float_32_execution_enabled()) {
      for (Tensor& input : inputs) input = InTF32(input);
    }
    TF_RETURN_IF_ERROR(shared->Compute(inputs, &memory, &results));
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (results[i].TotalBytes() != outputs[i].TotalBytes()) {
        return errors::Internal("output ", i, " has shape ", results[i].shape().DebugString(),
                                ", inferred was ", outputs[i].shape().DebugString());
      }
      // An input that the kernel passed on is somewhere else.
      if (results[i].data() == outputs[i].data()) continue;
      memcpy(outputs[i].data(), results[i].data(), results[i].TotalBytes());
    }
    return absl::OkStatus();
  }
};

// An operation of a graph, on a virtual GPU.
class Kernel : public OpKernel {
 public:
  Kernel(OpKernelConstruction* construction, std::unique_ptr<OpKernel> cpu_kernel,
         std::shared_ptr<const NodeProperties> properties, const OpRegistrationData* registration)
      : OpKernel(construction),
        registration_(registration),
        graph_version_(construction->graph_def_version()),
        launches_(Counter("launches", type_string())),
        path_(ChoosePath()),
        reusable_(ReusableInputs(type_string(), num_inputs())) {
    auto* device = static_cast<DeviceBase*>(construction->device());
    std::vector<AllocatorAttributes> inputs(num_inputs()), outputs;
    for (int i = 0; i < num_outputs(); ++i) outputs.push_back(NumberedOutput(i));
    shared_.reset(new Shared{type_string(), std::move(cpu_kernel), std::move(properties),
                             StreamDevice(device), inputs, outputs, RoundsToTF32(type_string())});
    (void)TryGetNodeAttr(def(), "validate_shape", &validates_shape_);
  }

  void Compute(OpKernelContext* context) override {
    if (path_ == Path::kPass) {
      shared_->cpu_kernel->Compute(context);
      return;
    }
    Stream* stream = StreamOf(context);
    OP_REQUIRES(context, stream, errors::Internal("virtual GPU: no stream for ", name()));
    if (PoisonsMemory() && !poisons_.exchange(true)) {
      PoisonFreedMemory(static_cast<DeviceBase*>(context->device())->GetAllocator({}), stream);
    }
    if (path_ == Path::kAssign) {
      ++launches_;
      Assign(type_string(), validates_shape_, context, stream);
    } else if (path_ == Path::kOpen) {
      Drain(stream);
      std::unique_lock<std::recursive_mutex> freeing(freeing_mutex);
      while (queued_poisons > 0) {
        freeing.unlock();
        stream->Drain();
        freeing.lock();
      }
      HostAccess access;
      shared_->cpu_kernel->Compute(context);
    } else if (path_ == Path::kDrain || !Launched(context, stream)) {
      ComputeNow(context, stream);
    }
  }

 private:
  enum class Path {
    kStream,  // shapes are known before values: the stream runs it
    kAssign,  // assignments to variables
    kPass,    // passes references to tensors on, and touches no data
    kDrain,   // values decide about shapes: waits for the stream first, as most do on a GPU
    kOpen,    // resources and variants: waits as well, and runs with the host's access
  };
  using Shapes = std::vector<TensorShape>;

  Path ChoosePath() const {
    static const auto* passing = new std::set<std::string>{"TensorListGetItem", "TensorListPopBack",
                                                           "EnsureShape", "Snapshot"};
    if (passing->count(type_string())) return Path::kPass;
    if (num_inputs() > 1 && IsAssignment(type_string(), input_type(1))) return Path::kAssign;
    if (!std::all_of(input_types().begin(), input_types().end(), IsPlain) ||
        !std::all_of(output_types().begin(), output_types().end(), IsPlain)) {
      return Path::kOpen;
    }
    bool has_shapes = registration_->shape_inference_fn && num_outputs() > 0;
    for (MemoryType type : output_memory_types()) has_shapes &= type == DEVICE_MEMORY;
    return has_shapes ? Path::kStream : Path::kDrain;
  }

  bool IsOnHost(int input) const { return input_memory_types()[input] == HOST_MEMORY; }

  std::vector<Tensor> InputsOnStream(OpKernelContext* context) const {
    std::vector<Tensor> inputs;
    inputs.reserve(num_inputs());
    for (int i = 0; i < num_inputs(); ++i)
      inputs.push_back(IsOnHost(i) ? context->input(i) : OnStream(context->input(i)));
    return inputs;
  }

  bool Launched(OpKernelContext* context, Stream* stream) {
    std::shared_ptr<const Shapes> shapes = InferOnce(context);
    if (!shapes) return false;
    auto call = std::make_unique<Call>(Call{shared_, InputsOnStream(context), {}, stream});
    double bytes = 0;
    for (const Tensor& input : call->inputs) bytes += input.TotalBytes();
    std::vector<int> reusable = reusable_;
    for (int i = 0; i < num_outputs(); ++i) {
      // With the scoped allocator, an output is where an input is.
      for (int j = 0; context->output_expects_forwarding(i) && j < num_inputs(); ++j)
        reusable.push_back(j);
      Tensor* output = nullptr;
      absl::Status status =
          context->forward_input_or_allocate_output(reusable, i, (*shapes)[i], &output);
      if (!status.ok()) {
        context->SetStatus(status);
        return true;
      }
      call->outputs.push_back(OnStream(*output));
      bytes += output->TotalBytes();
    }
    ++launches_;
    bool computes = DataTypeIsInteger(output_type(0)) || output_type(0) == DT_BOOL;
    if (ComputesNothing(computes ? bytes : HUGE_VAL)) call->shared = nullptr;
    double flops = Flops(type_string(), call->inputs, call->outputs);
    Launch(stream, type_string(), flops, bytes, [call = std::move(call)] { call->Run(); });
    return true;
  }

  // Shapes of outputs depend on those of inputs and on values in host memory, mostly small.
  std::shared_ptr<const Shapes> InferOnce(OpKernelContext* context) {
    constexpr size_t kMostBytes = 1024, kMostEntries = 256;
    std::string key;
    for (int i = 0; i < num_inputs(); ++i) {
      const Tensor& input = context->input(i);
      if (IsOnHost(i) && input.TotalBytes() > kMostBytes) return Infer(context);
      for (int64_t size : input.shape().dim_sizes())
        key.append(reinterpret_cast<const char*>(&size), sizeof size);
      key.push_back('|');
      if (IsOnHost(i)) key.append(input.tensor_data().data(), input.TotalBytes());
    }
    std::lock_guard<std::mutex> lock(cache_mutex_);
    auto found = cache_.find(key);
    if (found != cache_.end()) return found->second;
    if (cache_.size() >= kMostEntries) cache_.clear();
    return cache_[key] = Infer(context);
  }

  // Where inputs are wrong, there are no shapes; the CPU's kernel then says what is wrong.
  std::shared_ptr<const Shapes> Infer(OpKernelContext* context) {
    std::vector<PartialTensorShape> inputs;
    std::vector<const Tensor*> constants;
    for (int i = 0; i < num_inputs(); ++i) {
      inputs.push_back(context->input(i).shape());
      constants.push_back(IsOnHost(i) ? &context->input(i) : nullptr);
    }
    shape_inference::InferenceContext inference(graph_version_, AttrSlice(def()),
                                                registration_->op_def, inputs, constants, {}, {});
    if (!inference.construction_status().ok()) return nullptr;
    if (!inference.Run(registration_->shape_inference_fn).ok()) return nullptr;
    auto shapes = std::make_shared<Shapes>(num_outputs());
    for (int i = 0; i < num_outputs(); ++i) {
      auto output = inference.output(i);
      if (!inference.FullyDefined(output)) return nullptr;
      for (int j = 0; j < inference.Rank(output); ++j)
        (*shapes)[i].AddDim(inference.Value(inference.Dim(output, j)));
    }
    return shapes;
  }

  void Drain(Stream* stream) {
    ++Counter("drains", type_string());
    Trace("issued", stream, "drain", type_string());
    stream->Drain();
  }

  void ComputeNow(OpKernelContext* context, Stream* stream) {
    Drain(stream);
    std::vector<Tensor> results;
    OP_REQUIRES_OK(context, shared_->Compute(InputsOnStream(context), nullptr, &results));
    for (int i = 0; i < num_outputs(); ++i) {
      if (output_memory_types()[i] == HOST_MEMORY) {
        context->set_output(i, results[i]);
        continue;
      }
      Tensor* output = nullptr;
      OP_REQUIRES_OK(context, context->allocate_output(i, results[i].shape(), &output));
      char* target = StreamAddress(output->data());
      // Behind what poisons the memory.
      stream->Add(
          0, [target, result = results[i]] { memcpy(target, result.data(), result.TotalBytes()); });
    }
  }

  const OpRegistrationData* const registration_;
  const int graph_version_;
  std::atomic<int64_t>& launches_;
  const Path path_;
  const std::vector<int> reusable_;
  bool validates_shape_ = false;
  std::atomic<bool> poisons_{false};
  std::shared_ptr<Shared> shared_;
  std::mutex cache_mutex_;
  std::unordered_map<std::string, std::shared_ptr<const Shapes>> cache_;
};

// -------------------------------------------------------------------------------- registration

absl::Status Create(OpKernelConstruction* construction, OpKernel** kernel) {
  const OpRegistrationData* registration = nullptr;
  TF_RETURN_IF_ERROR(OpRegistry::Global()->LookUp(construction->def().op(), &registration));
  NodeDef node = construction->def();
  if (node.op() == kCtc) {
    const OpDef* of_cpu = nullptr;
    TF_RETURN_IF_ERROR(OpRegistry::Global()->LookUpOpDef(kCtcOfCpu, &of_cpu));
    node.set_op(kCtcOfCpu);
    AddDefaultsToNodeDef(*of_cpu, &node);
  }
  std::shared_ptr<const NodeProperties> properties;
  TF_RETURN_IF_ERROR(NodeProperties::CreateFromNodeDef(node, OpRegistry::Global(), &properties));
  auto* device = static_cast<DeviceBase*>(construction->device());
  OpKernel* created = nullptr;
  TF_RETURN_IF_ERROR(CreateOpKernel(
      DeviceType(DEVICE_CPU), device, device->GetAllocator({}), construction->function_library(),
      construction->resource_manager(), properties, construction->graph_def_version(), &created));
  std::unique_ptr<OpKernel> cpu_kernel(created);
  if (cpu_kernel->AsAsync()) {
    return errors::Unimplemented("virtual GPU: the CPU's ", node.op(), " is asynchronous");
  }
  *kernel = new Kernel(construction, std::move(cpu_kernel), std::move(properties), registration);
  return absl::OkStatus();
}

OpKernel* CreateOrFail(OpKernelConstruction* construction) {
  OpKernel* kernel = nullptr;
  absl::Status status = Create(construction, &kernel);
  if (!status.ok()) construction->SetStatus(status);
  return kernel;
}

// Returns a node that needs just this kernel.
NodeDef NodeOf(const KernelDef& kernel, const OpDef& op) {
  NodeDef node;
  node.set_name("node");
  node.set_op(kernel.op());
  if (!kernel.label().empty()) (*node.mutable_attr())["_kernel"].set_s(kernel.label());
  for (const auto& constraint : kernel.constraint()) {
    AttrValue& value = (*node.mutable_attr())[constraint.name()];
    const auto& allowed = constraint.allowed_values().list();
    const OpDef::AttrDef* attribute = FindAttr(constraint.name(), op);
    if (attribute && attribute->type() == "list(type)") {
      value.mutable_list()->add_type(allowed.type(0));
    } else if (allowed.type_size() > 0) {
      value.set_type(allowed.type(0));
    } else if (allowed.b_size() > 0) {
      value.set_b(allowed.b(0));
    } else if (allowed.i_size() > 0) {
      value.set_i(allowed.i(0));
    }
  }
  return node;
}

// Whether a kernel for GPUs works on any device: its class is also that of the CPU (Identity,
// Reshape, iterators, control flow), or all that it takes and returns is in the host's memory.
bool IsPortable(const KernelDef& kernel, const OpDef& op) {
  int arguments = op.input_arg_size() + op.output_arg_size();
  if (arguments > 0 && kernel.host_memory_arg_size() == arguments) return true;
  NodeDef node = NodeOf(kernel, op);
  const KernelDef* found = nullptr;
  std::string of_gpu, of_cpu;
  return FindKernelDef(DeviceType(DEVICE_GPU), node, &found, &of_gpu).ok() &&
         FindKernelDef(DeviceType(DEVICE_CPU), node, &found, &of_cpu).ok() && of_gpu == of_cpu;
}

}  // namespace
}  // namespace virtual_gpu

// TensorFlow calls it after SE_InitPlugin. Each kernel of its CUDA build for GPUs is registered
// again, with a higher priority, so that placement, types and host memory are as on a GPU.
extern "C" void TF_InitKernel() {
  using namespace virtual_gpu;
  KernelList registered = GetAllRegisteredKernels();
  for (const KernelDef& kernel : registered.kernel()) {
    const OpRegistrationData* operation = nullptr;
    if (kernel.device_type() != DEVICE_GPU) continue;
    if (!OpRegistry::Global()->LookUp(kernel.op(), &operation).ok()) continue;
    if (IsPortable(kernel, operation->op_def)) continue;
    auto* preferred = new KernelDef(kernel);
    preferred->set_priority(kernel.priority() + 1000);
    kernel_factory::OpKernelRegistrar registrar(preferred, "VirtualGpuKernel", CreateOrFail);
  }
}

// TensorFlow calls it for the graph optimizer of the device. This one changes nothing, and turns
// the optimizer of layouts off: the convolutions of CPUs know NHWC only.
extern "C" void TF_InitGraph(TP_OptimizerRegistrationParams* params, TF_Status*) {
  params->struct_size = TP_OPTIMIZER_REGISTRATION_PARAMS_STRUCT_SIZE;
  params->optimizer_configs->struct_size = TP_OPTIMIZER_CONFIGS_STRUCT_SIZE;
  params->optimizer_configs->layout_optimizer = TF_TriState_Off;
  params->device_type = "GPU";
  params->optimizer->struct_size = TP_OPTIMIZER_STRUCT_SIZE;
  params->optimizer->optimize_func = [](void*, const TF_Buffer* in, const TF_GrapplerItem*,
                                        TF_Buffer* out, TF_Status*) {
    // TensorFlow keeps the input for longer than the output, and frees it.
    out->data = in->data;
    out->length = in->length;
  };
}
