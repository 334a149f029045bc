#include "experiments/io/generate/record_stream.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "data/files/file_writer.h"
#include "experiments/io/generate/file_check.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

/// Makes blocks first, first + 1, ... in threads, a few ahead, and hands them out in order.
class BlockMaker {
 public:
  BlockMaker(const RecordStream& stream, std::int64_t first, int threads)
      : stream_(stream), next_(first), first_(first), slots_(static_cast<std::size_t>(2 * threads + 2)) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this](std::stop_token stop) { work(stop); });
  }
  ~BlockMaker() {
    for (std::jthread& thread : threads_) thread.request_stop();
    changed_.notify_all();
  }
  BlockMaker(const BlockMaker&) = delete;
  BlockMaker& operator=(const BlockMaker&) = delete;

  RecordBlock take() {
    std::unique_lock lock(mutex_);
    // No deadline is needed: the threads only compute and wait for nothing else.
    changed_.wait(lock, [&] { return failure_ || slot(first_).has_value(); });
    if (failure_) std::rethrow_exception(failure_);
    RecordBlock block = std::move(*slot(first_));
    slot(first_).reset();
    ++first_;
    changed_.notify_all();
    return block;
  }

 private:
  std::optional<RecordBlock>& slot(std::int64_t block) {
    return slots_[static_cast<std::size_t>(block) % slots_.size()];
  }

  void work(std::stop_token stop) {
    while (true) {
      std::int64_t mine = 0;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, stop, [&] { return next_ < first_ + static_cast<std::int64_t>(slots_.size()); });
        if (stop.stop_requested()) return;
        mine = next_++;
      }
      RecordBlock block;
      std::exception_ptr failure;
      try {
        stream_.make(mine, block);
      } catch (...) {
        failure = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      if (failure && !failure_) failure_ = failure;
      slot(mine) = std::move(block);
      changed_.notify_all();
    }
  }

  const RecordStream& stream_;
  std::mutex mutex_;  // guards the members below, except threads_
  std::condition_variable_any changed_;
  std::int64_t next_;   // the next block to make
  std::int64_t first_;  // the next block to take
  std::vector<std::optional<RecordBlock>> slots_;
  std::exception_ptr failure_;
  std::vector<std::jthread> threads_;  // the last member, so that threads end before the others are destroyed
};

/// Takes the bytes of one file, and writes them or compares them with the file.
class Sink {
 public:
  Sink(const fs::path& path, StreamMode mode, Bytes keep) {
    if (mode == StreamMode::Check) {
      check_.emplace(path);
      return;
    }
    fs::create_directories(path.parent_path());
    if (keep >= 0) {
      writer_.emplace(FileWriter::continued(path, keep));
    } else {
      writer_.emplace(path);
    }
  }
  void write(std::string_view bytes) { writer_ ? writer_->write(bytes) : check_->write(bytes); }
  void finish() { writer_ ? writer_->commit() : check_->finish(); }

 private:
  std::optional<FileWriter> writer_;
  std::optional<FileCheck> check_;
};

/// Returns the files that are finished, from the first one on. Sets `inside` to the bytes of whole blocks of
/// a file that was interrupted, or to -1.
StreamResult what_is_there(const RecordStream& stream, const fs::path& folder, Bytes size, Bytes& inside) {
  StreamResult there;
  inside = -1;
  while (there.bytes < size) {
    const fs::path file = folder / stream.file_of(there.records, there.bytes);
    std::error_code error;
    if (const auto bytes = fs::file_size(file, error); !error) {
      there.bytes += static_cast<Bytes>(bytes);
      there.records += stream.records_in(
          file, there.bytes < size ? RecordStream::Place::Inner : RecordStream::Place::Last);
      ++there.files;
      continue;
    }
    if (stream.record_bytes() > 0) {
      const auto bytes = fs::file_size(file.string() + ".partial", error);
      const Bytes block = stream.record_bytes() * stream.block_records();
      inside = error ? 0 : static_cast<Bytes>(bytes) / block * block;
      there.records += inside / stream.record_bytes();
      there.bytes += inside;
    }
    break;
  }
  there.kept = there.bytes;
  return there;
}

}  // namespace

StreamResult run_stream(const RecordStream& stream, const fs::path& folder, Bytes size, int threads,
                        StreamMode mode, const Progress& progress) {
  Bytes inside = -1;
  StreamResult result =
      mode == StreamMode::Write ? what_is_there(stream, folder, size, inside) : StreamResult{};
  if (result.bytes >= size && inside < 0) return result;
  const std::int64_t per_block = stream.block_records();
  BlockMaker maker(stream, result.records / per_block, threads);
  std::int64_t skip = result.records % per_block;
  std::unique_ptr<Sink> sink;
  std::string name;
  // A partial file that already has all its records only needs its name.
  if (inside > 0) sink = std::make_unique<Sink>(folder / (name = stream.file_of(0, 0)), mode, inside);
  while (result.bytes < size) {
    const RecordBlock block = maker.take();
    for (std::size_t i = static_cast<std::size_t>(skip); i < block.ends.size() && result.bytes < size; ++i) {
      if (std::string file = stream.file_of(result.records, result.bytes); file != name) {
        if (sink) sink->finish(), ++result.files;
        sink = std::make_unique<Sink>(folder / file, mode, stream.record_bytes() > 0 ? 0 : -1);
        name = std::move(file);
      }
      const std::size_t begin = i == 0 ? 0 : block.ends[i - 1];
      sink->write(std::string_view(block.bytes).substr(begin, block.ends[i] - begin));
      ++result.records;
      result.bytes += static_cast<Bytes>(block.ends[i] - begin);
    }
    skip = 0;
    if (progress) progress(result.bytes);
  }
  if (sink) sink->finish(), ++result.files;
  return result;
}

}  // namespace millrace
