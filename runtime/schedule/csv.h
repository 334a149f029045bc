// PyTorch's schedule files: what torch.distributed.pipelining's _load_csv and _dump_csv read and write. One
// line for each rank, actions joined by commas, empty fields for idle steps: `0F0,0F1,,0B0`,
// `(0F7;7B3)OVERLAP_F_B`, `0SEND_F1`, `2UNSHARD`. docs/schedules.md says what becomes of each.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/schedule/schedule.h"

namespace millrace {

struct CsvOptions {
  int replicas = 1;  ///< of every stage: the file describes one replica, microbatches are dealt out in turn
  /// The ranks of the stages and the links between stages; the file must agree with it. Null: line r is
  /// ranks r * replicas and following, and the stages form a chain.
  const PipelineShape* shape = nullptr;
};

struct CsvSchedule {
  Schedule schedule;  ///< kind Custom, valid under Transport::Buffered
  PipelineShape shape;
  std::vector<std::string> notes;  ///< what of the file has no meaning here
};

/// Reads computations (F, I, W, B), with or without transfers. Transfers are checked and then placed anew
/// (lower): in the file a RECV says where a receive is posted, here it is where its rank waits.
/// An overlapped pair is its parts, one after the other. UNSHARD and RESHARD are left out. REDUCE_GRAD is
/// Reduce where there are replicas. Files of older versions of PyTorch write `B` for I and `BW` for B: taken
/// as such if each B has its W.
/// Problems name file:line:column. Every kind of action that is missing, twice, or on another rank than its
/// stage's others, an order that cannot run, another shape than `options.shape`.
Result<CsvSchedule> read_schedule_csv(std::string_view text, const std::string& name,
                                      const CsvOptions& options = {});

enum class CsvContent {
  Computations,  ///< PyTorch's "compute_only": it places the transfers itself
  Transfers,     ///< "compute_comms"
};

/// One line for each rank. Reduce and Update are left out: PyTorch's optimizer step is outside the schedule.
/// A forward beside a backward of DualPipeV is written as an overlapped pair.
/// Problem for what the format cannot say: updates in the middle, replicas, and, with transfers, links that
/// are not the chain.
Result<std::string> schedule_csv(const Schedule& schedule, const PipelineShape& shape,
                                 CsvContent content = CsvContent::Computations);

}  // namespace millrace
