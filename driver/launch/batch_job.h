// A job as a batch job in the queue of a cluster: its submission, and how it is followed to its end.
// LibTorch-free.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "driver/queues/engine.h"
#include "runtime/base/result.h"

namespace millrace {

/// A batch job that was submitted with an output folder.
struct BatchJob {
  const Engine* engine;
  std::string id;
  std::filesystem::path folder;

  std::string name() const { return "batch job " + id + " of " + engine->title; }
  /// Returns the file of what it prints: "out" or "err".
  std::string output(const char* stream) const;
  /// Asks the queue. Nothing: it does not know the job. Problem: what its program says.
  Result<std::optional<QueueRecord>> ask() const;
};

/// Writes the script to OUT/job.EXTENSION, submits it, and notes the job in OUT/batch.json. Problem: what the
/// queue's program says.
Result<BatchJob> submit_batch_job(const JobSpec& job, const Engine& engine,
                                  const std::vector<std::string>& launch);

/// Passes on what the batch job prints until it ends, and returns its exit code. SIGINT and SIGTERM tell the
/// launcher inside to save and end; a second one cancels the job. A job that was put back into the queue is
/// followed on.
int follow_batch_job(const BatchJob& job);

/// Returns the batch job that was submitted with this output folder; nothing: there is none.
std::optional<BatchJob> submitted_batch_job(const std::filesystem::path& folder);
/// Tells the launcher inside to save and end; cancels a job that does not run yet, or `at_once`.
Status stop_batch_job(const BatchJob& job, const QueueRecord& record, bool at_once);

}  // namespace millrace
