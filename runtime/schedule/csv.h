// Reads and writes PyTorch's schedule files, as _load_csv and _dump_csv of torch.distributed.pipelining do. A
// file has one line for each rank; commas join actions, and empty fields are idle steps: `0F0,0F1,,0B0`,
// `(0F7;7B3)OVERLAP_F_B`, `0SEND_F1`, `2UNSHARD`. docs/schedules.md lists the meaning of each action.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/schedule/schedule.h"

namespace millrace {

struct CsvOptions {
  /// Replicas of every stage. The file describes one replica, and microbatches go to replicas in a round
  /// robin.
  int replicas = 1;
  /// The placement and the links of the stages, with which the file must agree. With nullptr, line r of the
  /// file is for the `replicas` ranks from r * replicas on, and the stages form a chain.
  const PipelineShape* shape = nullptr;
};

struct CsvSchedule {
  Schedule schedule;  ///< kind Custom, valid under Transport::Buffered
  PipelineShape shape;
  std::vector<std::string> notes;  ///< the parts of the file that have no meaning here
};

/// Reads computations (F, I, W, B), with or without transfers. Transfers are checked and then placed anew by
/// lower(): a RECV of the file is where a receive is posted, and a receive here is where its rank waits. The
/// parts of an overlapped pair follow each other. UNSHARD and RESHARD are left out. REDUCE_GRAD becomes
/// Reduce if there are replicas. Files of older versions of PyTorch write `B` for I and `BW` for B; they are
/// read so if each B has its W. Problems name file:line:column. They are: an action that is missing, stands
/// twice, or is on another rank than its stage's others; an order that cannot run; another shape than
/// `options.shape`.
Result<CsvSchedule> read_schedule_csv(std::string_view text, const std::string& name,
                                      const CsvOptions& options = {});

enum class CsvContent {
  Computations,  ///< PyTorch's "compute_only": it places the transfers itself
  Transfers,     ///< "compute_comms"
};

/// Returns the schedule as a file with one line for each rank. Reduce and Update are left out, because
/// PyTorch's optimizer step is outside the schedule. DualPipeV's forward beside a backward becomes an
/// overlapped pair. It is a Problem if the format cannot say the schedule: updates in the middle, replicas,
/// or, with transfers, links other than the chain.
Result<std::string> schedule_csv(const Schedule& schedule, const PipelineShape& shape,
                                 CsvContent content = CsvContent::Computations);

}  // namespace millrace
