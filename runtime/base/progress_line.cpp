#include "runtime/base/progress_line.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

constexpr const char* kEraseLine = "\r\x1b[K";
constexpr const char *kNoWrap = "\x1b[?7l", *kWrap = "\x1b[?7h";

bool is_terminal() {
  return ::isatty(STDERR_FILENO) != 0;
}

}  // namespace

std::string redrawn(const std::string& text) {
  return std::string(kEraseLine) + kNoWrap + text + kWrap;
}

std::string short_duration(double seconds) {
  const auto whole = static_cast<long long>(std::max(0.0, seconds) + 0.5);
  if (whole < 60) return printed("%llds", whole);
  if (whole < 3600) return printed("%lldm%02llds", whole / 60, whole % 60);
  return printed("%lldh%02lldm", whole / 3600, whole % 3600 / 60);
}

std::chrono::milliseconds progress_interval() {
  return is_terminal() ? std::chrono::milliseconds(100) : std::chrono::milliseconds(10'000);
}

ProgressLine::ProgressLine(Clock& clock, std::string what, Bytes total, std::string first)
    : clock_(clock),
      what_(what.empty() ? "" : std::move(what) + ": "),
      start_(clock.now()),
      last_(start_),
      total_(total),
      terminal_(is_terminal()) {
  if (!first.empty()) first_.emplace(std::move(first));
}

void ProgressLine::show(std::int64_t done, std::int64_t total, const std::string& unit) {
  if (done > 0) first_.reset();
  if (!is_time()) return;
  std::string text =
      printed("%lld of %lld ", static_cast<long long>(done), static_cast<long long>(total)) + unit;
  const double seconds = Seconds(last_ - start_).count();
  if (done > 0 && unit != "%") text += printed(", %.3g/s", static_cast<double>(done) / seconds);
  draw(done, total, std::move(text));
}

void ProgressLine::show_bytes(Bytes done) {
  if (!is_time()) return;
  const double megabytes = static_cast<double>(done) / 1e6;
  draw(done, total_,
       printed("%.1f of %.1f MB, %.0f MB/s", megabytes, static_cast<double>(total_) / 1e6,
               megabytes / Seconds(last_ - start_).count()));
}

void ProgressLine::clear() {
  first_.reset();
  if (std::exchange(drawn_, false)) std::fputs(kEraseLine, stderr);
}

bool ProgressLine::is_time() {
  const TimePoint now = clock_.now();
  if (now - last_ < progress_interval()) return false;
  last_ = now;
  return true;
}

void ProgressLine::draw(std::int64_t done, std::int64_t total, std::string text) {
  if (done > 0 && done < total) {
    const double left =
        Seconds(last_ - start_).count() * static_cast<double>(total - done) / static_cast<double>(done);
    text += ", " + short_duration(left) + " left";
  }
  if (!terminal_) return log_info(what_ + text);
  drawn_ = true;
  std::fputs(redrawn(what_ + progress_bar(std::min(done, total), total) + " " + text).c_str(), stderr);
  std::fflush(stderr);
}

WorkingLine::WorkingLine(std::string what)
    : what_(std::move(what)),
      terminal_(is_terminal()),
      thread_([this](std::stop_token stop) { write(std::move(stop)); }) {}

WorkingLine::~WorkingLine() {
  thread_.request_stop();
  thread_.join();
}

void WorkingLine::write(std::stop_token stop) {
  const std::chrono::seconds step = terminal_ ? std::chrono::seconds(1) : std::chrono::seconds(10);
  std::unique_lock lock(mutex_);
  bool drawn = false;
  for (std::chrono::seconds since = step;; since += step) {
    wake_.wait_for(lock, stop, step, [&] { return stop.stop_requested(); });
    if (stop.stop_requested()) break;
    const std::string text = what_ + ": " + short_duration(static_cast<double>(since.count()));
    if (terminal_) std::fputs(redrawn(text).c_str(), stderr);
    if (!terminal_) log_info(text);
    drawn = terminal_;
  }
  if (drawn) std::fputs(kEraseLine, stderr);
}

}  // namespace millrace
