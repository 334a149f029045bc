#include "models/translate/gnmt_pipeline.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "runtime/base/check.h"

namespace millrace {
namespace {

const std::string kChoice = "the chosen words";

/// A batch under way.
struct Flight {
  std::size_t batch = 0;
  std::int64_t sentences = 0, positions = 0;  // B, S
  GnmtDecoder decoder;
  at::Tensor words, from;            // next words, int64 [R]; `from` is undefined before the first word
  std::optional<BeamSearch> search;  // only at the last stage
  at::Tensor told;                   // message of the last stage, int64 [1 + 2 B beam]: R, `from`, `words`
  std::unique_ptr<Pending> telling;  // the sending or receiving of `told`
  std::vector<std::unique_ptr<Pending>> sends;
};

/// All stages visit the places of batches in the same cyclic order. The number of a visit is part of its
/// messages' tags. A visit computes one word of a batch; the first visit also encodes the batch. The last
/// stage's choice comes back before the next visit of the place. Meanwhile the stages work at other places.
class GnmtStagesWalk {
 public:
  GnmtStagesWalk(const GnmtTranslator& mine, const GnmtStages& stages, Communicator& ranks,
                 std::span<const SentenceIds> batches, const GnmtPipelineOptions& options)
      : mine_(mine),
        ranks_(ranks),
        batches_(batches),
        o_(options),
        crossings_(gnmt_crossings(mine.model(), stages)),
        me_(ranks.rank().value),
        last_(ranks.size() - 1) {
    MILLRACE_CHECK(static_cast<int>(stages.size()) == ranks.size());
    const int wanted = o_.in_flight > 0 ? o_.in_flight : 2 * ranks.size();
    places_.resize(wanted);
  }

  template <class Found>
  void run(const Found& found) {
    for (bool busy = true; busy;) {
      busy = false;
      for (std::optional<Flight>& place : places_) {
        visit(place, found);
        busy = busy || place || next_ < batches_.size();
        ++visit_;
      }
    }
    for (const std::unique_ptr<Pending>& pending : leaving_) pending->wait();
  }

 private:
  using When = GnmtCrossing::When;

  template <class Found>
  void visit(std::optional<Flight>& place, const Found& found) {
    if (place) hear(place);
    const bool fresh = !place;
    if (fresh && next_ == batches_.size()) return;
    TensorsByName values;
    if (fresh) begin(place, values);
    Flight& flight = *place;
    receive(flight, Phase::Words, values);
    if (flight.from.defined()) flight.decoder.reorder(flight.from);
    flight.decoder.step(flight.words, values);
    send(flight, Phase::Words, values);
    if (me_ < last_) return expect(flight);
    flight.search->advance({values.at(kGnmtClassifier), values.at(kGnmtLooks)});
    tell(flight);
    if (flight.words.size(0) > 0) return;
    found(flight.batch, flight.search->hypotheses());
    leave(place);
  }

  enum class Phase { Encoding, Words };
  static bool is_of(const GnmtCrossing& crossing, Phase phase) {
    return (crossing.when == When::Encoding) == (phase == Phase::Encoding);
  }

  void begin(std::optional<Flight>& place, TensorsByName& values) {
    const SentenceIds& sentences = batches_[next_];
    const at::Tensor source = gnmt_source(sentences);
    place.emplace(Flight{.batch = next_++,
                         .sentences = source.size(1),
                         .positions = source.size(0),
                         .decoder = GnmtDecoder(mine_, source, o_.limit),
                         .words = {},
                         .from = {},
                         .search = {},
                         .told = {},
                         .telling = {},
                         .sends = {}});
    receive(*place, Phase::Encoding, values);
    place->decoder.encode(values);
    send(*place, Phase::Encoding, values);
    BeamSearch search(place->sentences, o_.search);
    place->words = search.words();
    if (me_ == last_) place->search.emplace(std::move(search));
  }

  /// Takes the last stage's choice from the visit before. A batch that has ended leaves its place.
  void hear(std::optional<Flight>& place) {
    place->telling->wait();
    for (const std::unique_ptr<Pending>& send : place->sends) send->wait();
    place->sends.clear();
    if (me_ == last_) return;
    const std::int64_t rows = *place->told.const_data_ptr<std::int64_t>();
    if (rows == 0) return place.reset();
    place->from = place->told.narrow(0, 1, rows);
    place->words = place->told.narrow(0, 1 + rows, rows);
  }

  at::Tensor room_for_choice(const Flight& flight) const {
    return at::empty({1 + 2 * flight.sentences * o_.search.beam}, at::kLong);
  }

  void expect(Flight& flight) {
    flight.told = room_for_choice(flight);
    const Transfer transfer{.direction = Direction::Receive,
                            .peer = RankId(last_),
                            .tag = tag(crossings_.size()),
                            .tensor = flight.told,
                            .what = name_of(kChoice, flight)};
    flight.telling = ranks_.exchange({&transfer, 1});
  }

  void tell(Flight& flight) {
    flight.words = flight.search->words();
    flight.from = flight.search->from();
    flight.told = room_for_choice(flight);
    const std::int64_t rows = flight.words.size(0);
    flight.told.zero_()[0] = rows;
    flight.told.narrow(0, 1, rows).copy_(flight.from);
    flight.told.narrow(0, 1 + rows, rows).copy_(flight.words);
    std::vector<Transfer> transfers;
    for (int stage = 0; stage < last_; ++stage)
      transfers.push_back({.direction = Direction::Send,
                           .peer = RankId(stage),
                           .tag = tag(crossings_.size()),
                           .tensor = flight.told,
                           .what = name_of(kChoice, flight)});
    flight.telling = ranks_.exchange(transfers);
  }

  /// Empties a place. The last messages of its batch may still be under way, so they are kept.
  void leave(std::optional<Flight>& place) {
    leaving_.push_back(std::move(place->telling));
    for (std::unique_ptr<Pending>& send : place->sends) leaving_.push_back(std::move(send));
    place.reset();
    constexpr std::size_t kMostLeaving = 64;
    for (; leaving_.size() > kMostLeaving; leaving_.erase(leaving_.begin())) leaving_.front()->wait();
  }

  void receive(const Flight& flight, Phase phase, TensorsByName& values) {
    std::vector<Transfer> transfers;
    for (std::size_t i = 0; i < crossings_.size(); ++i) {
      const GnmtCrossing& crossing = crossings_[i];
      if (crossing.to != me_ || !is_of(crossing, phase)) continue;
      at::Tensor& tensor = values[crossing.tensor] = at::empty(shape_of(crossing, flight), at::kFloat);
      transfers.push_back({.direction = Direction::Receive,
                           .peer = RankId(crossing.from),
                           .tag = tag(i),
                           .tensor = tensor,
                           .what = name_of(crossing.tensor, flight)});
    }
    if (!transfers.empty()) ranks_.exchange(transfers)->wait();
  }

  void send(Flight& flight, Phase phase, const TensorsByName& values) {
    std::vector<Transfer> transfers;
    for (std::size_t i = 0; i < crossings_.size(); ++i) {
      const GnmtCrossing& crossing = crossings_[i];
      if (crossing.from != me_ || !is_of(crossing, phase)) continue;
      const at::Tensor tensor = values.at(crossing.tensor).contiguous();
      MILLRACE_CHECK(tensor.sizes() == at::IntArrayRef(shape_of(crossing, flight)), crossing.tensor);
      transfers.push_back({.direction = Direction::Send,
                           .peer = RankId(crossing.to),
                           .tag = tag(i),
                           .tensor = tensor,
                           .what = name_of(crossing.tensor, flight)});
    }
    if (!transfers.empty()) flight.sends.push_back(ranks_.exchange(transfers));
  }

  static Shape shape_of(const GnmtCrossing& crossing, const Flight& flight) {
    switch (crossing.when) {
      case When::Encoding:
        return {flight.positions, flight.sentences, crossing.features};
      case When::Decoding:
        return {flight.words.size(0), crossing.features};
      case When::Looking:
        break;
    }
    return {flight.words.size(0), flight.positions};
  }

  std::uint64_t tag(std::size_t message) const {
    const auto lanes = static_cast<std::uint64_t>(o_.lanes), lane = static_cast<std::uint64_t>(o_.lane);
    return (visit_ * lanes + lane) * (crossings_.size() + 1) + message;
  }

  /// Returns the name of a message for errors. `what` must outlive the message.
  LazyText name_of(const std::string& what, const Flight& flight) const {
    return [&what, batch = flight.batch, stage = me_] {
      return what + " of batch " + std::to_string(batch) + ", stage " + std::to_string(stage);
    };
  }

  const GnmtTranslator& mine_;
  Communicator& ranks_;
  std::span<const SentenceIds> batches_;
  const GnmtPipelineOptions& o_;
  std::vector<GnmtCrossing> crossings_;
  int me_, last_;
  std::vector<std::optional<Flight>> places_;
  std::vector<std::unique_ptr<Pending>> leaving_;
  std::size_t next_ = 0;     // the first batch that has not begun
  std::uint64_t visit_ = 0;  // number of the visit, the same on all stages
};

}  // namespace

void translate_in_stages(
    const GnmtTranslator& mine, const GnmtStages& stages, Communicator& ranks,
    std::span<const SentenceIds> batches, const GnmtPipelineOptions& options,
    const std::function<void(std::size_t batch, std::vector<std::vector<Hypothesis>> found)>& found) {
  const at::NoGradGuard no_grad;
  GnmtStagesWalk walk(mine, stages, ranks, batches, options);
  try {
    walk.run(found);
  } catch (const std::exception& error) {
    ranks.abort(error.what());  // before the messages under way are destroyed
    throw;
  }
}

}  // namespace millrace
