#include "driver/launch/pmix_session.h"

#include <dlfcn.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>

#include "runtime/base/text.h"

namespace millrace {
namespace {

// ---- what the standard lays down: types, constants and functions that are used here
// ---------------------------------------------------------------------------------------------------

using Code = int;  // pmix_status_t: 0 is success
constexpr std::uint32_t kWholeJob = UINT32_MAX - 1;
constexpr std::uint8_t kToAll = 3;  // PMIX_GLOBAL
enum Type : std::uint16_t { kBool = 1, kString = 3, kInt = 6, kUInt16 = 13, kUInt32 = 14 };

struct Process {
  char job[256];
  std::uint32_t rank;
};
struct Value {
  std::uint16_t type;
  union {
    bool flag;
    char* string;
    int integer;
    std::uint16_t uint16;
    std::uint32_t uint32;
    char room[24];  // of the largest alternative
  } data;
};
struct Info {
  char key[512];
  std::uint32_t flags;
  Value value;
};
static_assert(sizeof(Process) == 260 && sizeof(Value) == 32 && sizeof(Info) == 552);
using Done = void (*)(Code, void*);

struct Library {
  Code (*init)(Process*, Info*, std::size_t);
  Code (*finalize)(const Info*, std::size_t);
  Code (*get)(const Process*, const char*, const Info*, std::size_t, Value**);
  Code (*put)(std::uint8_t scope, const char*, Value*);
  Code (*commit)();
  Code (*fence_nb)(const Process*, std::size_t, const Info*, std::size_t, Done, void*);
  const char* (*error_string)(Code);
};

Result<Library> load_library() {
  void* const file = ::dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL);
  if (!file)
    return Problem{"PMIx", std::string("libpmix cannot be loaded: ") + ::dlerror(), "install it: libpmix2"};
  Library library{};
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(file, name));
    return function != nullptr;
  };
  const bool whole = find("PMIx_Init", library.init) && find("PMIx_Finalize", library.finalize) &&
                     find("PMIx_Get", library.get) && find("PMIx_Put", library.put) &&
                     find("PMIx_Commit", library.commit) && find("PMIx_Fence_nb", library.fence_nb) &&
                     find("PMIx_Error_string", library.error_string);
  if (!whole)
    return Problem{"PMIx", "libpmix.so.2 lacks functions of the standard", "install libpmix2, version 4"};
  return library;
}

Info info(const char* key, Type type, int number) {
  Info made{};
  std::strncpy(made.key, key, sizeof made.key - 1);
  made.value.type = type;
  if (type == kBool)
    made.value.data.flag = number != 0;
  else
    made.value.data.integer = number;
  return made;
}

int whole_seconds(std::chrono::milliseconds time) {
  return static_cast<int>(std::max<std::int64_t>(1, time.count() / 1000));
}

/// What a fence's callback writes. Shared: the callback may come after the waiting has ended.
struct Meeting {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Code> status;  // guarded by mutex
};

void fence_done(Code status, void* raw) {
  const std::unique_ptr<std::shared_ptr<Meeting>> meeting(static_cast<std::shared_ptr<Meeting>*>(raw));
  const std::lock_guard lock((*meeting)->mutex);
  (*meeting)->status = status;
  (*meeting)->changed.notify_all();
}

class Session final : public PmixSession {
 public:
  explicit Session(Library library) : library_(library) {}
  ~Session() override {
    if (usable_) library_.finalize(nullptr, 0);
  }

  Status start(std::chrono::milliseconds deadline) {
    Info timeout = info("pmix.timeout", kInt, whole_seconds(deadline));
    if (const Code status = library_.init(&self_, &timeout, 1); status != 0)
      return problem("the launcher's server does not answer", status);
    usable_ = true;
    const Result<int> size = number(kWholeJob, "pmix.job.size"),
                      local_size = number(kWholeJob, "pmix.local.size"),
                      local_rank = number(self_.rank, "pmix.lrank");
    for (const Result<int>* known : {&size, &local_size, &local_rank})
      if (!*known) return known->problems();
    place_ = {static_cast<int>(self_.rank), *size, *local_rank, *local_size == *size, self_.job};
    return Ok{};
  }

  const PmixPlace& place() const override { return place_; }

  Result<std::string> from_rank_0(const std::string& own, std::chrono::milliseconds deadline) override {
    constexpr const char* kKey = "millrace.meeting";
    if (place_.rank == 0) {
      Value value{.type = kString, .data = {}};
      std::string text = own;
      value.data.string = text.data();
      Code status = library_.put(kToAll, kKey, &value);
      if (status == 0) status = library_.commit();
      if (status != 0) return problem("rank 0 cannot tell the others where they meet", status);
    }
    if (const Status met = fence(deadline); !met) return met.problems();
    Value* value = nullptr;
    const Process first = process(0);
    const Info timeout = info("pmix.timeout", kInt, whole_seconds(deadline));
    if (const Code status = library_.get(&first, kKey, &timeout, 1, &value); status != 0)
      return problem("rank 0 has not told where the ranks meet", status);
    std::string text = value->type == kString && value->data.string ? value->data.string : "";
    if (value->type == kString) std::free(value->data.string);
    std::free(value);
    return text;
  }

 private:
  Process process(std::uint32_t rank) const {
    Process made = self_;
    made.rank = rank;
    return made;
  }

  Problem problem(const std::string& what, Code status) const {
    return {"PMIx", what + ": " + library_.error_string(status) + " (" + std::to_string(status) + ")",
            "set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT for every task, as torchrun does, "
            "to do without it"};
  }

  Result<int> number(std::uint32_t rank, const char* key) const {
    Value* value = nullptr;
    const Process asked = process(rank);
    if (const Code status = library_.get(&asked, key, nullptr, 0, &value); status != 0)
      return problem(std::string("the launcher does not tell ") + key, status);
    const int told = value->type == kUInt16 ? value->data.uint16 : static_cast<int>(value->data.uint32);
    std::free(value);
    return told;
  }

  Status fence(std::chrono::milliseconds deadline) {
    const Process all = process(kWholeJob);
    const Info collect = info("pmix.collect", kBool, 1);
    const auto meeting = std::make_shared<Meeting>();
    auto passed = std::make_unique<std::shared_ptr<Meeting>>(meeting);
    const Code begun = library_.fence_nb(&all, 1, &collect, 1, fence_done, passed.get());
    if (begun != 0) return problem("the ranks cannot meet", begun);
    passed.release();
    std::unique_lock lock(meeting->mutex);
    if (!meeting->changed.wait_for(lock, deadline, [&] { return meeting->status.has_value(); })) {
      usable_ = false;  // closing would wait for the others again
      return Problem{
          "PMIx",
          printed("some of the %d processes did not start within %g s", place_.size, deadline.count() / 1e3),
          "look for processes that ended early; --timeout sets how long to wait"};
    }
    if (*meeting->status != 0) return problem("the ranks cannot meet", *meeting->status);
    return Ok{};
  }

  Library library_;
  Process self_{};
  PmixPlace place_;
  bool usable_ = false;
};

}  // namespace

Result<std::unique_ptr<PmixSession>> PmixSession::open(std::chrono::milliseconds deadline) {
  const Result<Library> library = load_library();
  if (!library) return library.problems();
  auto session = std::make_unique<Session>(*library);
  if (const Status started = session->start(deadline); !started) return started.problems();
  return std::unique_ptr<PmixSession>(std::move(session));
}

}  // namespace millrace
