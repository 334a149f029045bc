#include "runtime/trace/flight_recorder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "runtime/base/files.h"

namespace millrace {
namespace {

constexpr std::array<char, 16> kMagic{'m', 'i', 'l', 'l', 'r', 'a', 'c', 'e',
                                      '-', 'f', 'l', 'i', 'g', 'h', 't', '1'};

void write_text(FlightRecord& record, std::string_view what) {
  const std::size_t length = std::min(what.size(), sizeof record.what - 1);
  std::memcpy(record.what, what.data(), length);
  std::memset(record.what + length, 0, sizeof record.what - length);
}

}  // namespace

struct FlightRecorder::Header {
  std::array<char, 16> magic;
  std::int64_t rank, stage, pid, unix_minus_clock_ns;
  std::array<char, 80> unused;
};

namespace {
constexpr std::size_t kHeaderBytes = 128;
constexpr std::size_t kFileBytes = kHeaderBytes + FlightRecorder::kCapacity * sizeof(FlightRecord);
}  // namespace

FlightRecorder::~FlightRecorder() {
  if (header_) ::munmap(header_, kFileBytes);
}

void FlightRecorder::open(const std::string& path, int rank, int stage, std::int64_t unix_ns) {
  static_assert(sizeof(Header) == kHeaderBytes);
  const std::lock_guard lock(mutex_);
  if (header_) return;
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return;
  // Written instead of truncated to length: a full disk is reported here, not by a SIGBUS at a record.
  const std::string blank(kFileBytes, '\0');
  void* mapped = MAP_FAILED;
  if (::pwrite(fd, blank.data(), blank.size(), 0) == static_cast<ssize_t>(blank.size()))
    mapped = ::mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (mapped == MAP_FAILED) return;
  records_ = reinterpret_cast<FlightRecord*>(static_cast<char*>(mapped) + kHeaderBytes);
  header_ = static_cast<Header*>(mapped);
  *header_ = {.magic = kMagic,
              .rank = rank,
              .stage = stage,
              .pid = ::getpid(),
              .unix_minus_clock_ns = unix_ns - clock_.now().time_since_epoch().count(),
              .unused = {}};
  is_open_ = true;
}

FlightRecord& FlightRecorder::place(std::uint64_t number) const {
  return records_[number % kCapacity];
}

std::uint64_t FlightRecorder::add(FlightRecord record, std::string_view what) {
  record.begun = clock_.now().time_since_epoch().count();
  write_text(record, what);
  const std::lock_guard lock(mutex_);
  if (record.kind == FlightRecord::Kind::Action)
    step_ = record.step;
  else
    record.step = step_;
  FlightRecord& at = place(++last_);
  at = record;
  at.number = last_;
  return last_;
}

std::uint64_t FlightRecorder::action(std::int64_t step, std::string_view what) {
  return is_open() ? add({.step = step}, what) : 0;
}

std::uint64_t FlightRecorder::message(FlightRecord::Kind kind, int peer, std::int64_t bytes,
                                      std::uint64_t tag) {
  return is_open() ? add({.bytes = bytes, .tag = tag, .peer = peer, .kind = kind}, "") : 0;
}

void FlightRecorder::wait(std::uint64_t number, std::string_view what) {
  if (number == 0) return;
  const std::int64_t now = clock_.now().time_since_epoch().count();
  const std::lock_guard lock(mutex_);
  FlightRecord& at = place(number);
  if (at.number != number) return;
  at.waited = now;
  at.state = FlightRecord::State::Waiting;
  write_text(at, what);
}

void FlightRecorder::end(std::uint64_t number, FlightRecord::State state) {
  if (number == 0) return;
  const std::int64_t now = clock_.now().time_since_epoch().count();
  const std::lock_guard lock(mutex_);
  FlightRecord& at = place(number);
  if (at.number != number) return;
  at.ended = now;
  at.state = state;
}

Result<Flight> read_flight(const std::string& path) {
  const Result<std::string> bytes = read_regular_file(path, kFileBytes);
  if (!bytes) return bytes.problems();
  if (bytes->size() != kFileBytes || !std::equal(kMagic.begin(), kMagic.end(), bytes->begin()))
    return Problem{path, "is no flight record of this version", {}};
  std::array<std::int64_t, 4> header{};  // rank, stage, pid, offset of the clock
  std::memcpy(header.data(), bytes->data() + kMagic.size(), sizeof header);
  Flight flight{.rank = static_cast<int>(header[0]),
                .stage = static_cast<int>(header[1]),
                .pid = header[2],
                .unix_minus_clock_ns = header[3],
                .records = {}};
  for (std::size_t at = kHeaderBytes; at < kFileBytes; at += sizeof(FlightRecord)) {
    FlightRecord record;
    std::memcpy(&record, bytes->data() + at, sizeof record);
    record.what[sizeof record.what - 1] = 0;
    const bool whole = record.number > 0 && record.begun > 0 && record.kind <= FlightRecord::Kind::Receive &&
                       record.state <= FlightRecord::State::Failed;
    if (whole) flight.records.push_back(record);
  }
  std::ranges::sort(flight.records, {}, &FlightRecord::number);
  return flight;
}

}  // namespace millrace
