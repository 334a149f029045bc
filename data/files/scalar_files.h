// Files of scalars that grow while a run trains: TensorBoard's event files, and a CSV table.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/base/scalar_sink.h"

namespace millrace {

// Records of an event file, framed as in a TFRecord file. Source: tensorflow/core/util/event.proto and
// framework/summary.proto. `unix_s`: seconds since 1970.
/// The first record of every event file: its version.
std::string tensorboard_header(double unix_s);
/// One value at a step.
std::string tensorboard_scalar(double unix_s, std::int64_t step, std::string_view name, double value);
/// Tells readers to drop the values of `step` and of later steps in files before this one: SessionLog START,
/// which torch's SummaryWriter writes for purge_step.
std::string tensorboard_purge(double unix_s, std::int64_t step);
/// The name of an event file: readers take the files of a folder in the order of their names.
std::string tensorboard_file_name(double unix_s, int number);

/// The treatment of an earlier run's file.
enum class EarlierRun { Refused, Replaced, Continued };

/// Writes each step at once into a new event file in `folder`, which is made if needed. `earlier` tells what
/// event files in `folder` mean: Replaced deletes them. Throws ConfigError.
std::unique_ptr<ScalarSink> open_tensorboard(const std::filesystem::path& folder, std::int64_t from,
                                             EarlierRun earlier);

/// Writes a table: a row for each step, a column for each name, "step" and "unix_s" first. A row goes into
/// the file when the next step comes, because an evaluation may still add to it, and at the end. A new name
/// adds a column to all rows. Throws ConfigError.
std::unique_ptr<ScalarSink> open_scalar_table(const std::filesystem::path& file, std::int64_t from,
                                              EarlierRun earlier);

}  // namespace millrace
