// Schedules of the V: place r holds stages r (chunk 0, on the way down) and 2p-1-r (chunk 1, on the way
// back).
#include <algorithm>
#include <array>

#include "runtime/schedule/generators.h"

namespace millrace {
namespace {

/// Writes the order of one place; counts microbatches per chunk and operation by itself.
class VPlace {
 public:
  VPlace(int place, int places) : stages_{place, 2 * places - 1 - place} {}
  void forward(int chunk) { add(Op::Forward, chunk, forwards_[at(chunk)]++); }
  void input(int chunk) { add(Op::BackwardInput, chunk, backwards_[at(chunk)]++); }
  void backward(int chunk) {
    add(Op::Backward, chunk, backwards_[at(chunk)]++);
    ++weights_[at(chunk)];
  }
  /// The next weight gradient of the chunk. Full backwards count as done.
  void weight(int chunk) { add(Op::BackwardWeight, chunk, weights_[at(chunk)]++); }
  void input_and_weight(int chunk) { input(chunk), weight(chunk); }
  int forwards(int chunk) const { return forwards_[at(chunk)]; }
  bool owes_weight(int chunk) const { return weights_[at(chunk)] < backwards_[at(chunk)]; }
  /// Without the microbatches from `limit` on, which were only there to fill the pipeline.
  Order take(int limit) {
    std::erase_if(order_, [limit](const Action& a) { return a.microbatch.value >= limit; });
    return std::move(order_);
  }

  /// Like weight, in the order in which the inputs were made.
  void oldest_weight() {
    while (next_owed_ < owed_.size()) {
      const Action& owed = owed_[next_owed_++];
      const int chunk = owed.stage.value == stages_[0] ? 0 : 1;
      if (owed.microbatch.value < weights_[at(chunk)]) continue;  // done already
      weight(chunk);
      return;
    }
  }

 private:
  static std::size_t at(int chunk) { return static_cast<std::size_t>(chunk); }
  void add(Op op, int chunk, int microbatch) {
    order_.push_back(computation(op, stages_[at(chunk)], microbatch));
    if (op == Op::BackwardInput) owed_.push_back(order_.back());
  }

  std::array<int, 2> stages_, forwards_{}, backwards_{}, weights_{};
  Order order_, owed_;
  std::size_t next_owed_ = 0;
};

void times(int count, auto&& body) {
  for (int i = 0; i < count; ++i) body();
}

Order zero_bubble_v_place(int r, int p, int microbatches) {
  const int m = std::max(microbatches, 2 * p - 1);
  VPlace place(r, p);
  times(2 * (p - r) - 1, [&] { place.forward(0); });
  times(r, [&] { place.forward(1), place.forward(0); });
  times(p - r, [&] { place.forward(1), place.input_and_weight(1); });
  while (place.forwards(1) < place.forwards(0) || place.forwards(0) < m) {
    if (place.forwards(0) < m) place.forward(0);
    place.input_and_weight(0);
    place.forward(1);
    place.input_and_weight(1);
  }
  times(r, [&] { place.input(0), place.input(1); });
  times(p - r, [&] { place.input_and_weight(0); });
  while (place.owes_weight(1)) place.weight(1);
  while (place.owes_weight(0)) place.weight(0);
  return place.take(microbatches);
}

Order dual_pipe_v_place(int r, int p, int microbatches) {
  const int m = std::max(microbatches, 2 * p);
  VPlace place(r, p);
  times(2 * (p - r - 1), [&] { place.forward(0); });
  times(r + 1, [&] { place.forward(0), place.forward(1); });
  times(p - r - 1, [&] { place.input_and_weight(1), place.forward(1); });
  times(m - 2 * p + r + 1, [&] {  // forwards beside backwards
    place.forward(0), place.backward(1);
    place.forward(1), place.backward(0);
  });
  times(p - r - 1, [&] { place.backward(1), place.forward(1), place.backward(0); });
  for (int i = 0, half = (r + 1) / 2; i < r + 1; ++i) {  // the second half leaves its weights for later
    const bool split_1 = r % 2 == 1 ? i >= half : i > half, split_0 = i >= half;
    split_1 ? place.input(1) : place.backward(1);
    split_0 ? place.input(0) : place.backward(0);
  }
  times(p - r - 1, [&] { place.oldest_weight(), place.input(0); });
  times(r + 1, [&] { place.oldest_weight(); });
  while (place.owes_weight(1) || place.owes_weight(0)) place.oldest_weight();
  return place.take(microbatches);
}

/// One microbatch on all places as times in units of a chunk's F = I = W: when place r runs F0, F1, I1, I0.
/// The block repeats every 6 units, one for each computation of a microbatch on a place; modulo 6 the times
/// of a place differ. `step[i]`: units from one place to the next in phase i; `wait[i]`: extra units at the
/// turns.
std::vector<Order> repeated_block(int p, int microbatches, const std::array<int, 4>& step,
                                  const std::array<int, 3>& wait, int cap) {
  constexpr int kPeriod = 6;
  const int f1 = (p - 1) * step[0] + 1 + wait[0], i1 = f1 + (p - 1) * step[1] + 1 + wait[1],
            i0 = i1 + (p - 1) * step[2] + 1 + wait[2];
  std::vector<Order> orders;
  for (int r = 0; r < p; ++r) {
    const std::array<std::pair<int, Action>, 4> block{
        {{r * step[0], computation(Op::Forward, r, 0)},
         {f1 + (p - 1 - r) * step[1], computation(Op::Forward, 2 * p - 1 - r, 0)},
         {i1 + r * step[2], computation(Op::BackwardInput, 2 * p - 1 - r, 0)},
         {i0 + (p - 1 - r) * step[3], computation(Op::BackwardInput, r, 0)}}};
    std::vector<std::pair<int, Action>> timed;
    for (int m = 0; m < microbatches; ++m) {
      for (auto [time, action] : block) {
        action.microbatch = MicrobatchId(m);
        timed.emplace_back(time + kPeriod * m, action);
      }
    }
    std::ranges::stable_sort(timed, {}, &std::pair<int, Action>::first);
    Order& order = orders.emplace_back();
    for (const auto& [time, action] : timed) order.push_back(action);
  }
  const std::vector<double> unit(2 * p, 1);
  return place_weights(orders, v_shape(p, microbatches),
                       {.forward = unit, .backward_input = unit, .backward_weight = unit},
                       std::vector<int>(p, cap));
}

}  // namespace

/// arXiv 2405.15362 and PyTorch's ScheduleZBVZeroBubble; a short step is the beginning of a longer one.
std::vector<Order> zero_bubble_v(int places, int, int microbatches) {
  std::vector<Order> orders;
  for (int r = 0; r < places; ++r) orders.push_back(zero_bubble_v_place(r, places, microbatches));
  return orders;
}

/// DualPipeV of DeepSeek, in the eight steps of PyTorch's ScheduleDualPipeV; a short step as above.
std::vector<Order> dual_pipe_v(int places, int, int microbatches) {
  std::vector<Order> orders;
  for (int r = 0; r < places; ++r) orders.push_back(dual_pipe_v_place(r, places, microbatches));
  return orders;
}

/// arXiv 2405.15362, section 3: the life of a microbatch's activations, summed over both chunks, is
/// 6p for steps (2, 1, 2, 1), half of 1F1B's 12p. Waits found by search: the least ones whose times differ
/// modulo 6 and that leave the least idle time, (3p - 5) / 2 F of a rank for p > 1 and m >= p.
std::vector<Order> v_half(int places, int, int microbatches) {
  const bool turns = places > 1 && places % 2 == 0;
  return repeated_block(places, microbatches, {2, 1, 2, 1},
                        turns ? std::array{3, 0, 4} : std::array{0, 0, places > 1 ? 1 : 0}, places + 2);
}

/// Repeats the block above with steps (1, 1, 1, 1): 4p, a third; idle (4p - 5) / 2.
std::vector<Order> v_min(int places, int, int microbatches) {
  return repeated_block(places, microbatches, {1, 1, 1, 1},
                        places % 3 == 0 ? std::array{2, 0, 2} : std::array{0, 0, 0}, 2 * (places + 4) / 3);
}

}  // namespace millrace
