// Writers of other tools' formats from one event log.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/export/event_log.h"
#include "runtime/base/choices.h"

namespace millrace {

enum class ExportFormat { Mllog, Chrome, Perfetto, TensorBoard, Prometheus, Csv, MLflow };
constexpr auto names_of(ExportFormat) {
  return std::to_array<std::string_view>(
      {"mllog", "chrome", "perfetto", "tensorboard", "prometheus", "csv", "mlflow"});
}
/// Comma-separated names, each once; "all". A Problem names what is unknown.
Result<std::vector<ExportFormat>> parse_export_formats(const std::string& text);

/// The files that one format wrote.
struct Exported {
  ExportFormat format = ExportFormat::Mllog;
  std::vector<std::string> files;
  std::int64_t spans = 0, values = 0;
};

/// Writes into the folder, which is made if needed: run.mllog; trace.chrome.json and one
/// trace.rank<k>.chrome.json a rank (PyTorch's tools read one a rank); trace.perfetto-trace;
/// tensorboard/rank<k>/events...; metrics.prom; spans.csv and values.csv; mlruns (MLflow's file
/// store, with one run). Files of the same name are replaced. Throws DataError when the disk fails.
Exported export_log(const EventLog& log, ExportFormat format, const std::filesystem::path& folder);

}  // namespace millrace
