#include <execinfo.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cwchar>
#include <map>
#include <random>
#include <sstream>

#include "tensorflow/c/experimental/stream_executor/stream_executor.h"
#include "virtual_gpu.h"

namespace virtual_gpu {

// ------------------------------------------------------------------------------------ settings

std::string Text(const char* name) {
  const char* value = getenv((std::string("VIRTUAL_GPU_") + name).c_str());
  return value ? value : "";
}

double Number(const char* name, double otherwise) {
  std::string text = Text(name);
  return text.empty() ? otherwise : atof(text.c_str());
}

namespace {

// Of a device, from a list; the last number also counts for further devices.
double NumberOf(const char* name, int ordinal, double otherwise) {
  std::istringstream words(Text(name));
  double number = otherwise;
  for (int i = 0; i <= ordinal && words >> otherwise; ++i) number = otherwise;
  return number;
}

// ------------------------------------------------------------------------------- time and chaos

using Clock = std::chrono::steady_clock;
using Microseconds = std::chrono::duration<double, std::micro>;

void SleepUntilUs(double end) {
  std::this_thread::sleep_until(std::chrono::time_point<Clock, Microseconds>(Microseconds(end)));
}

}  // namespace

double NowUs() { return Microseconds(Clock::now().time_since_epoch()).count(); }

void Chaos() {
  static const bool on = !Text("CHAOS").empty();
  if (!on) return;
  static std::atomic<int> threads{0};
  thread_local std::mt19937 random(static_cast<int>(Number("CHAOS", 0)) * 1000 + threads++);
  // One in 32 waits, half a millisecond on average: now and then for longer than whole steps.
  if (random() % 32 == 0) {
    std::exponential_distribution<double> wait_us(1.0 / 500);
    SleepUntilUs(NowUs() + wait_us(random));
  }
}

// ---------------------------------------------------------------------------- counts and traces

namespace {

using Counts = std::map<std::pair<std::string, std::string>, std::atomic<int64_t>>;

std::mutex record_mutex;

Counts& AllCounts() {
  static auto* counts = new Counts;
  return *counts;
}

// Writes what was counted, as tab-separated values: kind, name, count.
void WriteStats() {
  FILE* file = fopen(Text("STATS").c_str(), "w");
  if (!file) return;
  for (auto& [key, count] : AllCounts())
    fprintf(file, "%s\t%s\t%ld\n", key.first.c_str(), key.second.c_str(), count.load());
  fclose(file);
}

}  // namespace

std::atomic<int64_t>& Counter(const std::string& kind, const std::string& name) {
  std::lock_guard<std::mutex> lock(record_mutex);
  [[maybe_unused]] static const bool is_written = !Text("STATS").empty() && atexit(WriteStats) == 0;
  return AllCounts()[{kind, name}];
}

void Trace(const char* event, const Stream* stream, const char* kind, const std::string& name,
           uint64_t bytes) {
  static FILE* file = Text("TRACE").empty() ? nullptr : fopen(Text("TRACE").c_str(), "w");
  if (!file) return;
  std::lock_guard<std::mutex> lock(record_mutex);
  fprintf(file, "%.1f\t%s\t%d\t%d\t%s\t%s\t%lu\n", NowUs(), event, stream->device->ordinal,
          stream->number, kind, name.c_str(), bytes);
}

// --------------------------------------------------------------------------------------- memory

namespace {

// Of all devices together; addresses are not used twice.
constexpr size_t kAddresses = size_t{1} << 40;

char* FirstAddress() {
  static char* first = [] {
    void* reserved = mmap(nullptr, 2 * kAddresses, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) {
      fprintf(stderr, "virtual GPU: cannot reserve addresses: %s\n", strerror(errno));
      abort();
    }
    return static_cast<char*>(reserved);
  }();
  return first;
}

std::mutex memory_mutex;
int host_accesses = 0;  // that are open

std::map<char*, size_t>& Regions() {
  static auto* regions = new std::map<char*, size_t>;
  return *regions;
}

int DeviceProtection() { return host_accesses > 0 ? PROT_READ | PROT_WRITE : PROT_NONE; }

void ProtectRegions() {
  for (auto& [address, bytes] : Regions()) mprotect(address, bytes, DeviceProtection());
}

// Maps new memory twice: at the address that is returned, and where streams find it.
char* MapRegion(size_t bytes) {
  static size_t used = 0;
  size_t length = (bytes + 4095) / 4096 * 4096;
  int file = memfd_create("virtual_gpu", MFD_CLOEXEC);
  std::lock_guard<std::mutex> lock(memory_mutex);
  if (file < 0 || ftruncate(file, length) != 0 || used + length > kAddresses) return nullptr;
  char* address = FirstAddress() + used;
  void* views[] = {
      mmap(address, length, DeviceProtection(), MAP_SHARED | MAP_FIXED, file, 0),
      mmap(address + kAddresses, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0),
  };
  close(file);
  if (views[0] == MAP_FAILED || views[1] == MAP_FAILED) return nullptr;
  used += length;
  Regions()[address] = length;
  return address;
}

void UnmapRegion(char* address) {
  std::lock_guard<std::mutex> lock(memory_mutex);
  auto region = Regions().find(address);
  if (region == Regions().end()) return;
  // The addresses stay reserved, so that a late use is found.
  for (char* view : {address, address + kAddresses}) {
    mmap(view, region->second, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
         -1, 0);
  }
  Regions().erase(region);
}

struct sigaction former_action;

// Says what a segmentation fault in device memory means, and leaves the rest to who came before.
void OnSegmentationFault(int number, siginfo_t* info, void* context) {
  auto* address = static_cast<char*>(info->si_addr);
  if (address >= FirstAddress() && address < FirstAddress() + 2 * kAddresses) {
    const char* text = IsDeviceMemory(address)
                           ? "virtual GPU: host code touched device memory\n"
                           : "virtual GPU: a stream used memory that was given back\n";
    (void)!write(STDERR_FILENO, text, strlen(text));
    void* frames[40];
    backtrace_symbols_fd(frames, backtrace(frames, 40), STDERR_FILENO);
  }
  sigaction(number, &former_action, nullptr);  // The instruction is tried again, and ends it.
}

}  // namespace

bool IsDeviceMemory(const void* address) {
  auto* first = FirstAddress();
  return address >= first && address < first + kAddresses;
}

char* StreamAddress(const void* address) {
  auto* bytes = static_cast<char*>(const_cast<void*>(address));
  return IsDeviceMemory(address) ? bytes + kAddresses : bytes;
}

HostAccess::HostAccess() {
  std::lock_guard<std::mutex> lock(memory_mutex);
  if (++host_accesses == 1) ProtectRegions();
}

HostAccess::~HostAccess() {
  std::lock_guard<std::mutex> lock(memory_mutex);
  if (--host_accesses == 0) ProtectRegions();
}

void Poison(void* stream_address, size_t bytes) {
  wmemset(static_cast<wchar_t*>(stream_address), 0x7fff7fff, (bytes + 3) / 4);
}

bool PoisonsMemory() {
  static const bool poisons = Number("POISON", 1) != 0 && !ComputesNothing(HUGE_VAL);
  return poisons;
}

// ------------------------------------------------------------------------------------- streams

Stream::Stream(Device* of_device, int its_number)
    : device(of_device), number(its_number), thread_([this] { Run(); }) {}

Stream::~Stream() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
    added_.notify_one();
  }
  thread_.join();
}

void Stream::WaitFor(std::shared_ptr<Signal> signal) {
  if (signal && !signal->HasBeenNotified()) Push({0, nullptr, std::move(signal)});
}

void Stream::Push(Item item) {
  std::lock_guard<std::mutex> lock(mutex_);
  queue_.push_back(std::move(item));
  // To wake a thread costs more than many a kernel.
  if (sleeps_) added_.notify_one();
}

void Stream::Run() {
  // Before the host's threads and other programs, where that is allowed: a stream that wakes late
  // is slower than the costs.
  const sched_param first = {1};
  if (KernelUs(0, 0) > 0) pthread_setschedparam(pthread_self(), SCHED_RR, &first);
  std::deque<Item> items;
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      sleeps_ = true;
      added_.wait(lock, [this] { return stopped_ || !queue_.empty(); });
      sleeps_ = false;
      if (queue_.empty()) return;
      items.swap(queue_);
    }
    for (Item& item : items) Do(item);
    items.clear();
  }
}

void Stream::Do(Item& item) {
  if (item.signal) {
    item.signal->WaitForNotification();
    clock_us_ = std::max(clock_us_, NowUs());
  }
  Chaos();
  if (item.work) item.work();
  item.work = nullptr;
  if (item.us <= 0) return;
  double end = NowUs();
  // A clock that is 2 ms late does not catch up: the CPU is slower than the costs.
  clock_us_ = std::max(std::max(clock_us_, item.added_us) + item.us, end - 2000);
  if (clock_us_ - end > 100) SleepUntilUs(clock_us_);
}

void Stream::Drain() { Record()->WaitForNotification(); }

std::shared_ptr<Signal> Stream::Record() {
  auto signal = std::make_shared<Signal>();
  Add(0, [signal] { signal->Notify(); });
  return signal;
}

// ------------------------------------------- what TensorFlow calls: the C API of StreamExecutor

namespace {

// Of what was recorded last. Who waits for an event waits for what is recorded then.
using Event = std::shared_ptr<Signal>;

using Handle = const SP_Device*;
using Memory = SP_DeviceMemoryBase*;
using ConstMemory = const SP_DeviceMemoryBase*;

// TensorFlow's handles are these objects. The status that each function gets says that all is well,
// and the sizes of structs are filled in. Timers are for the tuning of kernels: there are none.
Device* Of(Handle device) { return static_cast<Device*>(device->device_handle); }
Stream* Of(SP_Stream stream) { return reinterpret_cast<Stream*>(stream); }
Event* Of(SP_Event event) { return reinterpret_cast<Event*>(event); }

void Allocate(Handle handle, uint64_t size, int64_t, Memory memory) {
  Device* device = Of(handle);
  std::lock_guard<std::mutex> lock(device->mutex);
  if (device->used_bytes + static_cast<int64_t>(size) > device->memory_bytes) return;
  memory->opaque = MapRegion(size);
  if (!memory->opaque) return;
  memory->size = size;
  device->used_bytes += size;
  if (PoisonsMemory()) Poison(StreamAddress(memory->opaque), size);
}

void Synchronize(Device* device) {
  std::unique_lock<std::mutex> lock(device->mutex);
  std::vector<Stream*> streams(device->streams.begin(), device->streams.end());
  lock.unlock();
  for (Stream* stream : streams) stream->Drain();
}

// Waits for the device, as CUDA does: what was launched may use the memory.
void Deallocate(Handle handle, Memory memory) {
  Synchronize(Of(handle));
  UnmapRegion(static_cast<char*>(memory->opaque));
  std::lock_guard<std::mutex> lock(Of(handle)->mutex);
  Of(handle)->used_bytes -= memory->size;
}

// TensorFlow gives host memory by its address, and memory of a device by a struct.
void* AddressOf(const void* host) { return const_cast<void*>(host); }
void* AddressOf(ConstMemory memory) { return memory->opaque; }

const char* Direction(const void* to, const void* from) {
  return !IsDeviceMemory(to) ? "to host" : IsDeviceMemory(from) ? "between devices" : "to device";
}

void Move(void* to, const void* from, uint64_t size) {
  if (ComputesNothing(size) && IsDeviceMemory(to)) return;
  memcpy(StreamAddress(to), StreamAddress(from), size);
}

template <class To, class From>
void Copy(Handle, SP_Stream handle, To to, From from, uint64_t size, TF_Status*) {
  Stream* stream = Of(handle);
  void *target = AddressOf(to), *source = AddressOf(from);
  const char* direction = Direction(target, source);
  Chaos();
  ++Counter("copies", direction);
  Trace("issued", stream, "copy", direction, size);
  // As with CUDA. On the devices of plug-ins, TensorFlow copies the constants of a function at once,
  // into memory that kernels which were launched before may still use: it was freed by the host
  // (MaybeCopyTensorToPluggableDevice in pluggable_device.cc; that of gpu_device.cc waits).
  if (IsDeviceMemory(target) && !IsDeviceMemory(source)) {
    stream->WaitFor(stream->device->compute->Record());
  }
  stream->Add(CopyUs(size), [=] {
    Move(target, source, size);
    Trace("done", stream, "copy", direction, size);
  });
}

// The host waits for these copies.
template <class To, class From>
void CopyNow(Handle, To to, From from, uint64_t size, TF_Status*) {
  Chaos();
  ++Counter("blocking copies", Direction(AddressOf(to), AddressOf(from)));
  double end = NowUs() + CopyUs(size);
  Move(AddressOf(to), AddressOf(from), size);
  if (end > NowUs()) SleepUntilUs(end);
}

template <class T>
void Fill(Handle, SP_Stream stream, Memory memory, T value, uint64_t size, TF_Status*) {
  if (ComputesNothing(size)) value = 0;
  auto* first = reinterpret_cast<T*>(StreamAddress(memory->opaque));
  Of(stream)->Add(KernelUs(0, size), [=] { std::fill(first, first + size / sizeof(T), value); });
}

void SetMemory(SP_StreamExecutor* executor) {
  executor->allocate = Allocate;
  executor->deallocate = Deallocate;
  executor->host_memory_allocate = [](Handle, uint64_t size) {
    return aligned_alloc(64, (size + 63) / 64 * 64);
  };
  executor->host_memory_deallocate = [](Handle, void* memory) { free(memory); };
  executor->get_allocator_stats = [](Handle, SP_AllocatorStats*) -> TF_Bool { return false; };
  executor->device_memory_usage = [](Handle device, int64_t* free, int64_t* total) -> TF_Bool {
    *total = Of(device)->memory_bytes;
    *free = *total - Of(device)->used_bytes;
    return true;
  };
  executor->mem_zero = [](Handle device, SP_Stream stream, Memory memory, uint64_t size,
                          TF_Status* ok) { Fill<uint8_t>(device, stream, memory, 0, size, ok); };
  executor->memset = Fill;
  executor->memset32 = Fill;
  executor->memcpy_dtoh = Copy;
  executor->memcpy_htod = Copy;
  executor->memcpy_dtod = Copy;
  executor->sync_memcpy_dtoh = CopyNow;
  executor->sync_memcpy_htod = CopyNow;
  executor->sync_memcpy_dtod = CopyNow;
}

void SetStreams(SP_StreamExecutor* executor) {
  executor->create_stream = [](Handle handle, SP_Stream* stream, TF_Status*) {
    Device* device = Of(handle);
    std::lock_guard<std::mutex> lock(device->mutex);
    auto* created = new Stream(device, device->stream_count++);
    device->streams.insert(created);
    if (created->number == 0) device->compute = created;
    *stream = reinterpret_cast<SP_Stream>(created);
  };
  executor->destroy_stream = [](Handle device, SP_Stream stream) {
    {
      std::lock_guard<std::mutex> lock(Of(device)->mutex);
      Of(device)->streams.erase(Of(stream));
    }
    delete Of(stream);
  };
  executor->create_stream_dependency = [](Handle, SP_Stream dependent, SP_Stream other,
                                          TF_Status*) {
    Of(dependent)->WaitFor(Of(other)->Record());
  };
  executor->get_stream_status = [](Handle, SP_Stream, TF_Status*) {};
  executor->host_callback = [](Handle, SP_Stream stream, SE_StatusCallbackFn call,
                               void* argument) -> TF_Bool {
    Of(stream)->Add(0, [=] {
      TF_Status* status = TF_NewStatus();
      call(argument, status);
      TF_DeleteStatus(status);
    });
    return true;
  };
  executor->block_host_until_done = [](Handle, SP_Stream stream, TF_Status*) {
    ++Counter("host waits", "stream");
    Trace("issued", Of(stream), "host waits", "stream");
    Of(stream)->Drain();
  };
  executor->synchronize_all_activity = [](Handle device, TF_Status*) {
    ++Counter("host waits", "device");
    Synchronize(Of(device));
  };
}

void SetEvents(SP_StreamExecutor* executor) {
  executor->create_event = [](Handle, SP_Event* event, TF_Status*) {
    *event = reinterpret_cast<SP_Event>(new Event);
  };
  executor->destroy_event = [](Handle, SP_Event event) { delete Of(event); };
  executor->get_event_status = [](Handle, SP_Event event) {
    bool is_complete = !*Of(event) || (*Of(event))->HasBeenNotified();
    return is_complete ? SE_EVENT_COMPLETE : SE_EVENT_PENDING;
  };
  executor->record_event = [](Handle, SP_Stream stream, SP_Event event, TF_Status*) {
    *Of(event) = Of(stream)->Record();
  };
  executor->wait_for_event = [](Handle const, SP_Stream stream, SP_Event event, TF_Status*) {
    Of(stream)->WaitFor(*Of(event));
  };
  executor->block_host_for_event = [](Handle, SP_Event event, TF_Status*) {
    ++Counter("host waits", "event");
    if (*Of(event)) (*Of(event))->WaitForNotification();
  };
}

std::map<int, Device*> devices;

void CreateDevice(const SP_Platform*, SE_CreateDeviceParams* params, TF_Status*) {
  int ordinal = params->ordinal;
  Device* device = devices[ordinal] = new Device;
  device->ordinal = ordinal;
  device->speed = NumberOf("SPEEDS", ordinal, 1);
  device->memory_bytes = NumberOf("MEMORY_MIB", ordinal, 4096) * 1048576;
  params->device->ordinal = ordinal;
  params->device->device_handle = device;
  params->device->hardware_name = "virtual GPU";
}

void SetPlatform(SP_PlatformFns* platform) {
  using Platform = const SP_Platform*;
  platform->get_device_count = [](Platform, int* count, TF_Status*) {
    *count = static_cast<int>(Number("COUNT", 2));
  };
  platform->create_device = CreateDevice;
  platform->destroy_device = [](Platform, SP_Device*) {};
  platform->create_device_fns = [](Platform, SE_CreateDeviceFnsParams* params, TF_Status*) {
    params->device_fns->get_numa_node = [](Handle) -> int32_t { return 0; };
  };
  platform->destroy_device_fns = [](Platform, SP_DeviceFns*) {};
  platform->create_stream_executor = [](Platform, SE_CreateStreamExecutorParams* params,
                                        TF_Status*) {
    SetMemory(params->stream_executor);
    SetStreams(params->stream_executor);
    SetEvents(params->stream_executor);
  };
  platform->destroy_stream_executor = [](Platform, SP_StreamExecutor*) {};
  platform->destroy_timer_fns = [](Platform, SP_TimerFns*) {};
}

}  // namespace
}  // namespace virtual_gpu

// Changes the speed of a device that is there, for the kernels that are launched from now on.
extern "C" void virtual_gpu_set_speed(int ordinal, double speed) {
  virtual_gpu::devices.at(ordinal)->speed = speed;
}

// TensorFlow calls it when it loads the plug-in.
extern "C" void SE_InitPlugin(SE_PlatformRegistrationParams* params, TF_Status*) {
  using namespace virtual_gpu;
  struct sigaction action = {};
  action.sa_sigaction = OnSegmentationFault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, &former_action);
  params->platform->name = "VIRTUAL_GPU";
  params->platform->type = "GPU";
  params->platform->use_bfc_allocator = true;
  SetPlatform(params->platform_fns);
  params->destroy_platform = [](SP_Platform*) {};
  params->destroy_platform_fns = [](SP_PlatformFns*) {};
}
