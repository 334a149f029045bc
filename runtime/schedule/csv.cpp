#include "runtime/schedule/csv.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "runtime/base/byte_order_mark.h"
#include "runtime/schedule/generators.h"
#include "runtime/schedule/op_names.h"

namespace millrace {
namespace {

constexpr std::int64_t kMostNumber = 1'000'000;  // stages, microbatches
constexpr std::int64_t kMostCells = 20'000'000;  // stages x microbatches
constexpr std::size_t kMostReported = 20;

/// The content of a field. REDUCE_GRAD is Op::Reduce; UNSHARD and RESHARD have no Op.
struct Field {
  Action action;
  bool is_shard = false;
  bool is_old_backward = false;  ///< BW
  int line = 0;
  std::size_t column = 0;
};
using Rows = std::vector<std::vector<Field>>;

struct Word {
  const char* text;
  std::optional<Op> op;
  bool needs_microbatch = true;
};
constexpr Word kWords[] = {{"F", Op::Forward},
                           {"B", Op::Backward},
                           {"BW", Op::Backward},
                           {"I", Op::BackwardInput},
                           {"W", Op::BackwardWeight},
                           {"SEND_F", Op::SendActivation},
                           {"RECV_F", Op::RecvActivation},
                           {"SEND_B", Op::SendGradient},
                           {"RECV_B", Op::RecvGradient},
                           {"REDUCE_GRAD", Op::Reduce, false},
                           {"UNSHARD", std::nullopt, false},
                           {"RESHARD", std::nullopt, false}};

bool take_digits(std::string_view& text, std::int64_t& value) {
  if (text.empty() || text[0] < '0' || text[0] > '9') return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value > kMostNumber) return false;
  text.remove_prefix(end - text.data());
  return true;
}

std::string_view trimmed(std::string_view text, std::size_t& column) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1), ++column;
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

/// STAGE WORD [MICROBATCH]
bool read_action(std::string_view text, Field& field) {
  std::int64_t stage = 0, microbatch = -1;
  if (!take_digits(text, stage)) return false;
  const std::string_view letters = text.substr(0, text.find_first_of("0123456789"));
  const auto* word =
      std::ranges::find(kWords, letters, [](const Word& w) { return std::string_view(w.text); });
  if (word == std::end(kWords)) return false;
  text.remove_prefix(letters.size());
  if (!text.empty() && !take_digits(text, microbatch)) return false;
  if (!text.empty() || (word->needs_microbatch && microbatch < 0)) return false;
  field.is_shard = !word->op;
  field.is_old_backward = letters == "BW";
  const int s = static_cast<int>(stage);
  field.action = {
      .op = word->op.value_or(Op::Forward), .stage = StageId(s), .microbatch = MicrobatchId(microbatch)};
  if (is_transfer(field.action.op)) {
    const bool next = field.action.op == Op::SendActivation || field.action.op == Op::RecvGradient;
    field.action.peer_stage = StageId(next ? s + 1 : s - 1);
  }
  return true;
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& name, const CsvOptions& options)
      : text_(text), name_(name), options_(options) {}

  Result<CsvSchedule> read() {
    split();
    if (!problems_.empty()) return problems_;
    if (rows_.empty()) return Problem{name_, "has no actions", "one line for each rank, e.g. 0F0,0B0"};
    for (const auto step : {&Reader::place, &Reader::number_from_zero, &Reader::count, &Reader::modernize,
                            &Reader::complete, &Reader::shape}) {
      (this->*step)();
      if (!problems_.empty()) return problems_;
    }
    return build();
  }

 private:
  std::string at(const Field& f) const {
    return name_ + ":" + std::to_string(f.line) + ":" + std::to_string(f.column);
  }
  void fail(std::string where, std::string what, std::string hint = "") {
    if (problems_.size() < kMostReported)
      problems_.push_back({std::move(where), std::move(what), std::move(hint)});
  }
  static std::string short_name(const Action& a) {
    if (a.op == Op::Reduce) return std::to_string(a.stage.value) + "REDUCE_GRAD";
    return std::to_string(a.stage.value) + name_of(a.op) + std::to_string(a.microbatch.value);
  }

  // ---- fields
  // ---------------------------------------------------------------------------------------------

  void split() {
    text_ = without_mark(text_);
    for (int line = 1; !text_.empty(); ++line) {
      const std::size_t end = text_.find('\n');
      std::string_view row = text_.substr(0, end);
      text_.remove_prefix(end == std::string_view::npos ? text_.size() : end + 1);
      if (row.ends_with('\r')) row.remove_suffix(1);
      rows_.emplace_back();
      for (std::size_t at = 0; at <= row.size();) {
        const std::size_t stop = std::min(row.find(',', at), row.size());
        field(row.substr(at, stop - at), line, at + 1);
        at = stop + 1;
      }
    }
    while (!rows_.empty() && rows_.back().empty()) rows_.pop_back();  // blank lines at the end
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      if (rows_[r].empty() && problems_.empty())
        fail(name_ + ":" + std::to_string(r + 1) + ":1", "rank " + std::to_string(r) + " has no actions");
    }
  }

  void field(std::string_view text, int line, std::size_t column) {
    text = trimmed(text, column);
    if (text.empty()) return;  // an idle step
    constexpr std::string_view overlap = ")OVERLAP_F_B";
    if (!text.starts_with('(') || !text.ends_with(overlap)) return action(text, line, column, false);
    text.remove_prefix(1), ++column;
    text.remove_suffix(overlap.size());
    for (std::size_t at = 0; at <= text.size();) {
      const std::size_t stop = std::min(text.find(';', at), text.size());
      std::size_t start = column + at;
      const std::string_view part = trimmed(text.substr(at, stop - at), start);
      action(part, line, start, true);
      at = stop + 1;
    }
  }

  void action(std::string_view text, int line, std::size_t column, bool in_pair) {
    Field f{.line = line, .column = column};
    if (!read_action(text, f) || (in_pair && (f.is_shard || !is_compute(f.action.op)))) {
      fail(at(f),
           "'" + std::string(text.substr(0, 40)) + "' is not an action" + (in_pair ? " of a pair" : ""),
           in_pair ? "for example (0F7;7B3)OVERLAP_F_B" : "for example 2F0, 1I3, 0SEND_F1, 2UNSHARD");
    } else if (f.is_shard) {
      ++shards_;
    } else {
      rows_.back().push_back(f);
    }
  }

  // ---- what there is
  // ---------------------------------------------------------------------------------------

  /// Every stage is on one rank.
  void place() {
    std::map<int, const Field*> first;
    std::map<int, std::size_t> row_of;
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      for (const Field& f : rows_[r]) {
        const int s = f.action.stage.value;
        if (const auto [known, is_new] = row_of.emplace(s, r); is_new) {
          first[s] = &f;
        } else if (known->second != r) {
          fail(at(f),
               "stage " + std::to_string(s) + " is on this rank and on rank " + std::to_string(known->second),
               "first at " + at(*first[s]));
        }
        has_transfers_ |= is_transfer(f.action.op);
        microbatches_ = std::max(microbatches_, f.action.microbatch.value + 1);
      }
    }
    for (const auto& [stage, row] : row_of) {
      if (stage != static_cast<int>(row_of_stage_.size()))
        return fail(name_, "has no stage " + std::to_string(row_of_stage_.size()), "stages are 0, 1, 2 ...");
      row_of_stage_.push_back(row);
    }
  }

  /// PyTorch's Schedule1F1B numbers the forwards of its last rank from 1, its backwards from 0.
  void number_from_zero() {
    struct Numbers {
      std::set<std::int64_t> forwards, backwards;
    };
    std::map<int, Numbers> of_stage;
    for (const auto& row : rows_) {
      for (const Field& f : row) {
        Numbers& numbers = of_stage[f.action.stage.value];
        if (f.action.op == Op::Forward) numbers.forwards.insert(f.action.microbatch.value);
        if (f.action.op == Op::Backward || f.action.op == Op::BackwardInput)
          numbers.backwards.insert(f.action.microbatch.value);
      }
    }
    const auto are = [](const std::set<std::int64_t>& numbers, std::int64_t first) {
      return !numbers.empty() && *numbers.begin() == first &&
             *numbers.rbegin() == first + static_cast<std::int64_t>(numbers.size()) - 1;
    };
    std::set<int> shifted;
    for (const auto& [stage, numbers] : of_stage) {
      if (are(numbers.forwards, 1) && are(numbers.backwards, 0) &&
          numbers.forwards.size() == numbers.backwards.size())
        shifted.insert(stage);
    }
    if (shifted.empty()) return;
    microbatches_ = 0;
    for (auto& row : rows_) {
      for (Field& f : row) {
        if (f.action.op == Op::Forward && shifted.contains(f.action.stage.value)) --f.action.microbatch.value;
        microbatches_ = std::max(microbatches_, f.action.microbatch.value + 1);
      }
    }
    for (int stage : shifted)
      notes_.push_back("the forwards of stage " + std::to_string(stage) +
                       " are numbered from 1 and read from 0, as its backwards are");
  }

  /// Weight gradients are added as the list has them: another order than 0, 1, 2 ... rounds otherwise.
  void note_order_of_sums() {
    std::map<int, std::int64_t> newest;
    std::set<int> noted;
    for (const auto& row : rows_) {
      for (const Field& f : row) {
        if (f.action.op != Op::Backward && f.action.op != Op::BackwardWeight) continue;
        const int stage = f.action.stage.value;
        const auto [known, is_first] = newest.emplace(stage, f.action.microbatch.value);
        if (!is_first && f.action.microbatch.value < known->second && noted.insert(stage).second) {
          notes_.push_back("stage " + std::to_string(stage) + " adds the weight gradient of microbatch " +
                           std::to_string(f.action.microbatch.value) + " after that of " +
                           std::to_string(known->second) +
                           ": sums round otherwise than in one process, so the weights are equal to rounding "
                           "and not bit for bit");
        }
        known->second = std::max(known->second, f.action.microbatch.value);
      }
    }
  }

  using Cell = std::pair<int, std::int64_t>;
  static Cell cell(const Field& f) { return {f.action.stage.value, f.action.microbatch.value}; }

  /// No computation or transfer twice; a forward of every microbatch in every stage, so that the numbers are
  /// no larger than the file.
  void count() {
    std::map<std::pair<Op, Cell>, const Field*> seen;
    std::set<Cell> forwards;
    for (const auto& row : rows_) {
      for (const Field& f : row) {
        const auto [known, is_new] = seen.emplace(std::pair{f.action.op, cell(f)}, &f);
        if (!is_new) fail(at(f), short_name(f.action) + " is there twice", "first at " + at(*known->second));
        if (f.action.op == Op::Forward) forwards.insert(cell(f));
      }
    }
    for (int s = 0; s < static_cast<int>(row_of_stage_.size()); ++s) {
      for (std::int64_t m = 0; m < microbatches_; ++m) {
        if (!forwards.contains({s, m}))
          return fail(name_,
                      "stage " + std::to_string(s) + " has no forward of microbatch " + std::to_string(m));
      }
    }
  }

  /// B of older files, where the whole backward is BW, becomes I.
  void modernize() {
    std::set<Cell> weights;
    bool old = false, all = true;
    for (const auto& row : rows_)
      for (const Field& f : row)
        if (f.action.op == Op::BackwardWeight) weights.insert(cell(f));
    for (const auto& row : rows_) {
      for (const Field& f : row) {
        all &= f.action.op != Op::BackwardInput;
        if (f.action.op != Op::Backward || f.is_old_backward) continue;
        const bool has_weight = weights.contains(cell(f));
        old |= has_weight;
        all &= has_weight;
      }
    }
    if (!old || !all) return;
    for (auto& row : rows_)
      for (Field& f : row)
        if (f.action.op == Op::Backward && !f.is_old_backward) f.action.op = Op::BackwardInput;
    notes_.push_back("B beside W is read as I, as older PyTorch wrote it");
  }

  /// One whole backward, or both halves.
  void complete() {
    std::map<Cell, std::map<Op, const Field*>> done;
    for (const auto& row : rows_)
      for (const Field& f : row)
        if (is_compute(f.action.op)) done[cell(f)][f.action.op] = &f;
    for (const auto& [which, ops] : done) {
      const bool whole = ops.contains(Op::Backward), input = ops.contains(Op::BackwardInput),
                 weight = ops.contains(Op::BackwardWeight);
      const std::string where = at(*ops.at(Op::Forward)), name = short_name(ops.at(Op::Forward)->action);
      if (whole && (input || weight))
        fail(at(*ops.at(Op::Backward)),
             "B is the whole backward of " + name + ", which has an I or W as well");
      else if (!whole && !input)
        fail(where, name + " has no backward", "B, or I and W");
      else if (!whole && !weight)
        fail(where, name + " has no weight gradient", "W after I, or B for both");
    }
  }

  // ---- where it runs
  // ---------------------------------------------------------------------------------------

  /// The shape, and the ranks of each line.
  void shape() {
    if (options_.shape != nullptr) return given_shape();
    const auto cells = static_cast<std::int64_t>(row_of_stage_.size()) * microbatches_ * options_.replicas;
    if (cells > kMostCells)
      return fail(name_, "is too large with " + std::to_string(options_.replicas) + " replicas");
    shape_.microbatches = static_cast<int>(microbatches_) * options_.replicas;
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      auto& ranks = ranks_of_row_.emplace_back();
      for (int i = 0; i < options_.replicas; ++i)
        ranks.emplace_back(static_cast<int>(r) * options_.replicas + i);
    }
    for (std::size_t row : row_of_stage_) shape_.ranks_of_stage.push_back(ranks_of_row_[row]);
  }

  void given_shape() {
    shape_ = *options_.shape;
    const auto stages = row_of_stage_.size();
    if (shape_.ranks_of_stage.size() != stages)
      return fail(name_, "has " + std::to_string(stages) + " stages, expected " +
                             std::to_string(shape_.num_stages()));
    const int replicas = shape_.replicas(StageId(0));
    ranks_of_row_.resize(rows_.size());
    for (std::size_t s = 0; s < stages; ++s) {
      auto& ranks = ranks_of_row_[row_of_stage_[s]];
      const auto& wanted = shape_.ranks_of_stage[s];
      if (static_cast<int>(wanted.size()) != replicas)
        return fail(name_,
                    "describes one replica of the pipeline, the stages have different numbers of them");
      if (ranks.empty()) ranks = wanted;
      if (ranks != wanted)
        return fail(name_ + ":" + std::to_string(row_of_stage_[s] + 1),
                    "stage " + std::to_string(s) + " is on another rank than in the plan");
    }
    if (static_cast<int>(rows_.size()) * replicas != shape_.num_ranks())
      return fail(name_, "has " + std::to_string(rows_.size()) + " ranks, expected " +
                             std::to_string(shape_.num_ranks() / replicas));
    if (microbatches_ * replicas != shape_.microbatches)
      fail(name_, "has " + std::to_string(microbatches_) + " microbatches, expected " +
                      std::to_string(shape_.microbatches / replicas) + " for each replica");
  }

  /// The list of replica `replica` of a line, with or without its transfers.
  Order order_of(std::size_t row, int replica, bool with_transfers) const {
    const int replicas = static_cast<int>(ranks_of_row_[row].size());
    const std::int64_t last = (microbatches_ - 1) * replicas + replica;
    Order order;
    for (const Field& f : rows_[row]) {
      Action a = f.action;
      if (is_transfer(a.op) && !with_transfers) continue;
      a.microbatch = MicrobatchId(a.op == Op::Reduce ? last : a.microbatch.value * replicas + replica);
      if (a.op == Op::Reduce && replicas == 1) continue;
      if (is_transfer(a.op) && a.peer_stage.value >= 0 && a.peer_stage.value < shape_.num_stages())
        a.peer = shape_.rank_of(a.peer_stage, a.microbatch);
      order.push_back(a);
    }
    return order;
  }

  std::vector<Order> orders(bool with_transfers) const {
    std::vector<Order> all(shape_.num_ranks());
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      for (std::size_t i = 0; i < ranks_of_row_[r].size(); ++i)
        all[ranks_of_row_[r][i].value] = order_of(r, static_cast<int>(i), with_transfers);
    }
    return all;
  }

  void must_be_valid(const Schedule& schedule) {
    for (Problem& problem : check(schedule, shape_, Transport::Buffered))
      fail(name_ + ": " + problem.where, std::move(problem.what), std::move(problem.hint));
  }

  Result<CsvSchedule> build() {
    if (has_transfers_) {
      Schedule as_it_is{.kind = ScheduleKind::Custom, .ranks = orders(true)};
      for (Order& order : as_it_is.ranks) finish_step(shape_, order);
      must_be_valid(as_it_is);
      if (!problems_.empty()) return problems_;
    }
    CsvSchedule result{.schedule = lower(ScheduleKind::Custom, shape_, orders(false)), .shape = shape_};
    must_be_valid(result.schedule);
    if (!problems_.empty()) return problems_;
    if (shards_ > 0)
      notes_.push_back(std::to_string(shards_) +
                       " UNSHARD and RESHARD are left out: weights are not sharded here");
    note_order_of_sums();
    result.notes = std::move(notes_);
    return result;
  }

  std::string_view text_;
  const std::string& name_;
  const CsvOptions& options_;
  Problems problems_;
  Rows rows_;
  int shards_ = 0;
  bool has_transfers_ = false;
  std::int64_t microbatches_ = 0;
  std::vector<std::size_t> row_of_stage_;
  PipelineShape shape_;
  std::vector<std::vector<RankId>> ranks_of_row_;
  std::vector<std::string> notes_;
};

/// The place of the V where forwards and backwards meet: its first pair is not overlapped (PyTorch's
/// ScheduleDualPipeV), the activation of the forward is the backward's own.
bool is_turn(const std::vector<StageId>& stages, const PipelineShape& shape) {
  return !stages.empty() && stages.front().value + 1 == shape.num_stages() / 2;
}

std::string row_of(const std::vector<Action>& actions, CsvContent content, bool pairs, bool skip_first_pair) {
  std::vector<Action> written;
  for (const Action& a : actions)
    if (is_compute(a.op) || (is_transfer(a.op) && content == CsvContent::Transfers)) written.push_back(a);
  const auto word = [](const Action& a) {
    return std::to_string(a.stage.value) + name_of(a.op) + std::to_string(a.microbatch.value);
  };
  std::string row;
  for (std::size_t i = 0; i < written.size(); ++i) {
    if (i > 0) row += ',';
    const bool pair = pairs && i + 1 < written.size() && written[i].op == Op::Forward &&
                      written[i + 1].op == Op::Backward && !std::exchange(skip_first_pair, false);
    row += pair ? "(" + word(written[i]) + ";" + word(written[i + 1]) + ")OVERLAP_F_B" : word(written[i]);
    i += pair;
  }
  return row;
}

bool is_chain(const PipelineShape& shape) {
  for (const StageLink& link : shape.links)
    if (link.to.value != link.from.value + 1) return false;
  return true;
}

}  // namespace

Result<CsvSchedule> read_schedule_csv(std::string_view text, const std::string& name,
                                      const CsvOptions& options) {
  return Reader(text, name, options).read();
}

Result<std::string> schedule_csv(const Schedule& schedule, const PipelineShape& shape, CsvContent content) {
  Problems problems;
  if (is_asynchronous(schedule.kind))
    problems.push_back(
        {"",
         "PyTorch's schedules end with one update, " + to_string(schedule.kind) + " updates in the middle",
         {}});
  if (shape.arrays > 1)
    problems.push_back({"", "PyTorch's schedules end with one update, several arrays have one each",
                        "write it with one array"});
  for (const auto& ranks : shape.ranks_of_stage) {
    if (ranks.size() == 1) continue;
    problems.push_back(
        {"", "PyTorch's file describes one replica of the pipeline", "write it without replicas"});
    break;
  }
  if (content == CsvContent::Transfers && !is_chain(shape))
    problems.push_back({"", "PyTorch's transfers go to the next stage only", "write the computations only"});
  if (!problems.empty()) return problems;
  const bool pairs = schedule.kind == ScheduleKind::DualPipeV && content == CsvContent::Computations;
  const auto stages = shape.stages_of_ranks();
  std::string text;
  for (std::size_t r = 0; r < schedule.ranks.size(); ++r)
    text += row_of(schedule.ranks[r], content, pairs, is_turn(stages[r], shape)) + "\n";
  return text;
}

}  // namespace millrace
