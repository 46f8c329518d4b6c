// What the files of the plug-in share.
//
// A virtual GPU is memory of the host with addresses of its own, streams that are threads, and the
// kernels of the CPU.
#ifndef TESTS_VIRTUAL_GPU_VIRTUAL_GPU_H_
#define TESTS_VIRTUAL_GPU_VIRTUAL_GPU_H_

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/synchronization/notification.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace virtual_gpu {

// ----------------------------------------------------------------------- device.cc: settings

// Values of the environment variables VIRTUAL_GPU_*, which `python -m tests.virtual_gpu` sets.
std::string Text(const char* name);
double Number(const char* name, double otherwise);

double NowUs();

// Waits a random time now and then, if chaos is on: where the host launches or copies, and before
// each piece of work of a stream. So what depends on the order of threads fails sooner.
void Chaos();

// Counts by kind and name, such as ("launches", "MatMul"), which are written to VIRTUAL_GPU_STATS
// at the end of the process.
std::atomic<int64_t>& Counter(const std::string& kind, const std::string& name);

// Writes a line to VIRTUAL_GPU_TRACE: the time in microseconds, "issued" by the host or "done" by a
// stream, the device, the stream, the kind, the name and the bytes.
class Stream;
void Trace(const char* event, const Stream* stream, const char* kind, const std::string& name,
           uint64_t bytes = 0);

// ------------------------------------------------------------------------- device.cc: memory

// TensorFlow holds addresses of a range that nobody may touch. Streams use the same memory at other
// addresses, a constant distance away. So host code that touches memory of a device ends the
// process, as it does with CUDA. An address of host memory is returned as it is.
char* StreamAddress(const void* address);
bool IsDeviceMemory(const void* address);

// Opens all memory of all devices to the host, for CPU kernels that cannot be given other
// addresses, because they reach tensors through resources and variants. Streams must be idle.
class HostAccess {
 public:
  HostAccess();
  ~HostAccess();
};

// Fills memory with 0x7fff: NaN in each floating-point type, and a large integer.
void Poison(void* stream_address, size_t bytes);
bool PoisonsMemory();

// ------------------------------------------------------------------------ device.cc: streams

using Work = absl::AnyInvocable<void()>;

// Set once, when the work before it is done.
using Signal = absl::Notification;

struct Device {
  int ordinal;
  std::atomic<double> speed;
  int64_t memory_bytes;
  std::mutex mutex;
  int64_t used_bytes = 0;
  std::set<Stream*> streams;
  int stream_count = 0;
  Stream* compute = nullptr;  // the first one
};

// A thread that does work in the order in which it was added.
class Stream {
 public:
  Stream(Device* device, int number);
  ~Stream();

  // Adds work that lasts at least so many microseconds. The stream has a clock of its own, so that
  // the overhead of a sleep does not add up: work begins when the work before it should have ended,
  // but not before it was added.
  void Add(double us, Work work) { Push({us, std::move(work), nullptr}); }

  // Lets the stream wait for a signal before it goes on; there may be none.
  void WaitFor(std::shared_ptr<Signal> signal);

  // Returns a signal that is set when all is done that was added before.
  std::shared_ptr<Signal> Record();

  // Waits until all is done that was added before.
  void Drain();

  Device* const device;
  const int number;  // 0 computes

 private:
  struct Item {
    double us;
    Work work;
    std::shared_ptr<Signal> signal;
    double added_us = NowUs();
  };
  void Push(Item item);
  void Run();
  void Do(Item& item);

  std::mutex mutex_;
  std::condition_variable added_;
  std::deque<Item> queue_;
  bool sleeps_ = false, stopped_ = false;
  double clock_us_ = 0;
  std::thread thread_;
};

// ---------------------------------------------------------------------------------- costs.cc

// Whether kernels and copies to devices of so many bytes last, but compute nothing: their memory
// stays zero, so that every value is finite and every index is valid. Small integers, which
// may be shapes, are computed.
bool ComputesNothing(double bytes);

// How long work lasts, by the table of costs: a kernel on a GPU of speed 1, of which `bytes` are
// those of all inputs and outputs, and a copy. 0 without a table.
double KernelUs(double flops, double bytes);
double CopyUs(double bytes);

// Floating-point operations of products and convolutions; 0 of all other kernels.
double Flops(const std::string& op, const std::vector<tensorflow::Tensor>& inputs,
             const std::vector<tensorflow::Tensor>& outputs);

// Launches: keeps the host busy for as long as CUDA takes, and adds work to a stream.
void Launch(Stream* stream, const std::string& op, double flops, double bytes, Work work);

// -------------------------------------------------------------------------------- kernels.cc

// Whether a tensor of a type is plain memory: no strings, resources or variants.
bool IsPlain(tensorflow::DataType type);

// Returns a tensor at the addresses at which streams find it. It holds no reference: on a GPU, a
// kernel that was launched does not either. Memory is free for others as soon as the host says so,
// and the order of the stream keeps it valid for kernels that were launched before.
tensorflow::Tensor OnStream(const tensorflow::Tensor& tensor);

// ------------------------------------------------------------------- assignments.cc and ctc.cc

// Assignments to variables, as on a GPU: the host decides which memory is written, and the stream
// writes it. The CPU's kernels would do both at once, and so wait for the stream.
bool IsAssignment(const std::string& op, tensorflow::DataType type);
void Assign(const std::string& op, bool validates_shape, tensorflow::OpKernelContext* context,
            Stream* stream);

// The CTC loss of cuDNN, CTCLossV2, by the CPU's CTCLoss. For it, the blank is the last class
// instead of the first; AfterCtc writes no gradient behind the end of a row, as cuDNN.
absl::Status BeforeCtc(std::vector<tensorflow::Tensor>* inputs);
void AfterCtc(const std::vector<tensorflow::Tensor>& inputs,
              const std::vector<tensorflow::Tensor>& results,
              std::vector<tensorflow::Tensor>* outputs);

}  // namespace virtual_gpu

#endif  // TESTS_VIRTUAL_GPU_VIRTUAL_GPU_H_
