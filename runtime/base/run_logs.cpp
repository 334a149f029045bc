#include "runtime/base/run_logs.h"

#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>

#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/units.h"

namespace millrace {
namespace {

/// Returns whether a log line belongs to a step before `step`. Run headers and broken lines belong to none.
bool is_before(const Result<Json>& json, std::int64_t step) {
  if (!json) return false;
  const auto is_below = [&](const char* key, std::int64_t end) {
    const Json* number = json->find(key);
    return number && number->kind() == Json::Kind::Int && number->as_int() < end;
  };
  return is_below("step", step) || is_below("after_step", step + 1);
}

/// Returns the end of the last line in `text` that belongs to a step before `step`; nothing if there is none.
std::optional<std::size_t> end_of_lines_before(const std::string& text, std::int64_t step,
                                               const std::string& path) {
  // An unfinished line at the end is ignored.
  for (std::size_t end = text.rfind('\n') + 1; end > 0;) {
    const std::size_t newline = end > 1 ? text.rfind('\n', end - 2) : std::string::npos;
    const std::size_t begin = newline + 1;  // 0 if there is no earlier line
    if (is_before(parse_json(text.substr(begin, end - 1 - begin), path), step)) return end;
    end = begin;
  }
  return std::nullopt;
}

/// Returns whether an evaluation after `step` steps is among the last lines of `text`.
bool ends_evaluated(std::string_view text, std::int64_t step) {
  while (!text.empty()) {
    const std::size_t begin = text.find_last_of('\n', text.size() - 2) + 1;  // 0 if there is no earlier line
    const Result<Json> json = parse_json(text.substr(begin, text.size() - 1 - begin), "log");
    const Json* after = json ? json->find("after_step") : nullptr;
    if (!after || after->kind() != Json::Kind::Int || after->as_int() != step) return false;
    if (const Json* of = json->find("of"); of && of->is_string() && of->as_string() == "evaluation")
      return true;
    text = text.substr(0, begin);
  }
  return false;
}

/// Warns of complete lines that are not JSON. Only a damaged disk or an editor causes them: a killed rank
/// leaves at most a partial last line.
void warn_of_damage(std::string_view lines, const std::string& path) {
  int damaged = 0;
  for (std::size_t at = 0, end; (end = lines.find('\n', at)) != std::string_view::npos; at = end + 1)
    damaged += !parse_json(lines.substr(at, end - at), path);
  if (damaged > 0)
    log_warning(path + ": " + std::to_string(damaged) +
                " damaged line(s) near its end: what stood in them is lost, and missing in reports");
}

}  // namespace

bool cut_log_from(const std::filesystem::path& path, std::int64_t step) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);  // also returns an error for a FIFO
  if (error) return false;
  std::ifstream file(path, std::ios::binary);
  std::optional<std::size_t> end;
  std::uintmax_t from = size;
  bool evaluated = false;
  // The first line of a tail may be incomplete. It is then not JSON, and belongs to no step.
  for (std::uintmax_t window = 64 * 1024; !end && from > 0; window *= 4) {
    from = size > window ? size - window : 0;
    std::string tail(size - from, '\0');
    file.seekg(static_cast<std::streamoff>(from));
    if (!file.read(tail.data(), static_cast<std::streamsize>(tail.size()))) return false;
    end = end_of_lines_before(tail, step, path.string());
    if (!end && from > 0) continue;
    const std::size_t first = from > 0 ? tail.find('\n') + 1 : 0;
    warn_of_damage(std::string_view(tail).substr(first), path.string());
    evaluated = ends_evaluated(std::string_view(tail).substr(0, end.value_or(0)), step);
  }
  const std::uintmax_t kept = from + end.value_or(0);
  if (kept == size) return evaluated;
  std::filesystem::resize_file(path, kept, error);
  if (error) log_warning(path.string() + ": cannot be cut: " + error.message());
  return evaluated;
}

bool cut_table_from(const std::filesystem::path& path, std::int64_t step, bool& own_steps) {
  const Result<std::string> text = read_regular_file(path, kGiB);
  if (!text || !text->starts_with("step,job,")) return false;
  const bool has = std::string_view(*text).substr(0, text->find('\n')).ends_with(kOwnStep);
  const bool adds = own_steps && !has;
  own_steps = own_steps || has;
  std::string kept;
  for (std::size_t at = 0, end; (end = text->find('\n', at)) != std::string::npos; at = end + 1) {
    const std::int64_t of_row = at > 0 ? std::strtoll(text->c_str() + at, nullptr, 10) : -1;
    if (of_row >= step) continue;
    kept.append(*text, at, end - at);
    if (adds) kept += at > 0 ? "," + std::to_string(of_row) : std::string(kOwnStep);
    kept += '\n';
  }
  if (kept == *text) return true;
  const Status written = write_file_atomically(path, kept);
  if (!written) log_warning(to_string(written.problems()));
  return true;
}

}  // namespace millrace
