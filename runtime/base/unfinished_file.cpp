#include "runtime/base/unfinished_file.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>
#include <new>
#include <utility>

namespace millrace {

/// A node of a list that only grows, because a handler may traverse it at any time. The code that takes
/// `path` out owns the text.
struct UnfinishedFile::Entry {
  std::atomic<bool> taken{true};
  std::atomic<char*> path{nullptr};
  pid_t process = 0;
  Entry* next = nullptr;
};

namespace {

std::atomic<void*> first_entry{nullptr};
// a replaced note is not freed, because a handler may be writing it
std::atomic<const char*> interrupt_note{nullptr};
std::atomic<pid_t> ending_process{0};              // the process whose handler runs
constexpr int kMillisecondsForOtherThreads = 200;  // time to create the files that they have registered
static_assert(std::atomic<char*>::is_always_lock_free && std::atomic<void*>::is_always_lock_free);

}  // namespace

/// Removes the files of `process`. Returns false if one of them does not exist yet, because its thread is
/// about to create it. Calls only async-signal-safe functions.
bool UnfinishedFile::remove_all(pid_t process) {
  bool all_existed = true;
  for (auto* entry = static_cast<Entry*>(first_entry.load()); entry; entry = entry->next) {
    if (!entry->taken.load() || entry->process != process) continue;
    char* const path = entry->path.exchange(nullptr);
    if (!path || ::unlink(path) == 0 || errno != ENOENT) continue;
    all_existed = false;
    entry->path = path;
  }
  return all_existed;
}

/// The other threads keep running meanwhile. They cannot register another file, and the handler waits for the
/// files that they have registered. The interrupted thread may itself hold such a file, hence the time limit.
/// SA_RESETHAND: the raised signal ends the process.
void remove_unfinished_files(int signal) {
  const pid_t process = ::getpid();
  ending_process = process;
  const timespec pause{0, 1'000'000};
  for (int left = kMillisecondsForOtherThreads; !UnfinishedFile::remove_all(process) && left > 0; --left)
    ::nanosleep(&pause, nullptr);
  const char* const note = interrupt_note.load();
  if (note && signal != SIGHUP) [[maybe_unused]]
    const ssize_t n = ::write(STDERR_FILENO, note, std::strlen(note));
  ::raise(signal);
}

namespace {

/// Installs the handler for signals without a handler. A program that handles its signals unwinds its stack,
/// which removes its files.
void handle_signals() {
  struct sigaction action {};
  action.sa_handler = remove_unfinished_files;
  action.sa_flags = SA_RESETHAND | SA_NODEFER;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction inherited {};
    const bool plain = ::sigaction(signal, nullptr, &inherited) == 0 &&
                       (inherited.sa_flags & SA_SIGINFO) == 0 && inherited.sa_handler == SIG_DFL;
    if (plain) ::sigaction(signal, &action, nullptr);
  }
}

void handle_signals_once() {
  static std::once_flag once;
  std::call_once(once, handle_signals);
}

/// Blocks a thread forever while a signal ends its process, so that it creates no further file.
void wait_if_ending() {
  while (ending_process.load() == ::getpid()) ::pause();
}

}  // namespace

void tell_when_interrupted(const std::string& note) {
  if (const char* const text = ::strdup(("\n" + note + "\n").c_str())) interrupt_note = text;
  handle_signals_once();
}

UnfinishedFile::Entry* UnfinishedFile::claim() {
  handle_signals_once();
  wait_if_ending();
  for (auto* entry = static_cast<Entry*>(first_entry.load()); entry; entry = entry->next) {
    if (!entry->taken.exchange(true)) return entry;
  }
  auto* const made = new Entry;
  void* head = first_entry.load();
  do {
    made->next = static_cast<Entry*>(head);
  } while (!first_entry.compare_exchange_weak(head, made));
  return made;
}

UnfinishedFile::UnfinishedFile(const std::string& path) : entry_(claim()) {
  char* const text = ::strdup(path.c_str());
  if (!text) {
    entry_->taken = false;
    throw std::bad_alloc();
  }
  entry_->process = ::getpid();
  entry_->path = text;
  if (ending_process.load() == ::getpid()) entry_->path = nullptr;
  wait_if_ending();
}

UnfinishedFile::UnfinishedFile(UnfinishedFile&& other) noexcept
    : entry_(std::exchange(other.entry_, nullptr)) {}

UnfinishedFile& UnfinishedFile::operator=(UnfinishedFile&& other) noexcept {
  std::swap(entry_, other.entry_);
  return *this;
}

UnfinishedFile::~UnfinishedFile() {
  if (!entry_) return;
  std::free(entry_->path.exchange(nullptr));
  entry_->taken = false;
}

}  // namespace millrace
