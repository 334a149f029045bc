"""Seeded mutations, by file: (text of the file that is there once, with the mutated part between @@ and @@; what takes its place)."""
MUTATIONS = {
    "optimizer/cost/cost_model.cpp": [
        ("return {fill, @@2 * fill@@};", "fill + 1"),
        ("return @@(microbatches + r - 1) / r@@;\n}\n\n/// Returns the seconds in which", "microbatches / r"),
        ("seconds.backward += cost.seconds(@@2 * node.parameter_bytes@@);", "node.parameter_bytes"),
        ("return link.latency_s + @@size / link.bandwidth@@ +", "0.0"),
        ("const double pairs = own * (members_ - @@own@@);", "1"),
        ("return @@2 * (latency + exchange(size / members_))@@;", "latency + exchange(size / members_)"),
        ("held.outgoing * (moment.gradients + @@1@@)", "0"),
        (".half_done = @@number(between) + kept@@,", "number(between)"),
        ("const double sum = (held.weights * @@versions@@ + held.state)", "1"),
        ("known->back = std::max(known->back, @@back@@);", "known->back"),
        ("now += sheet.backward_weight[i] + (split ? @@0@@ : sheet.backward_input[i]);", "sheet.backward_input[i]"),
        ("if (stage.recompute) input += forward - @@(last ? sheet.loss_s : 0)@@;", "0"),
        ("estimate.update_s[s] += @@costs.norm[s]@@;", "0"),
    ],
    "optimizer/cost/round_cost.cpp": [
        ("own.push_back(seconds_of(a, costs.at(sizes[at % arrays])[@@at / arrays@@], messages));", "0"),
        ("return @@costs.backward_input[s] + costs.backward_weight[s]@@;", "costs.backward_input[s]"),
    ],
    "optimizer/planner/candidates.cpp": [
        ("return limit == 0 || @@(*peaks)[s] <= limit@@;", "(*peaks)[s] >= limit"),
        ("if (@@better(found, of_its_way)@@) of_its_way", "!better(found, of_its_way)"),
    ],
    "optimizer/planner/chunk_cuts.cpp": [
        ("if (s < first_pass_) fill += space_.forward_s(sheet, a, b) + @@2 * hop@@;", "hop"),
        ("if (result[i] <= before || @@result[end - 1] >= after@@) return {};", "result[end - 1] > after"),
    ],
    "optimizer/planner/cut_space.cpp": [
        ("for (int u : graph.before[v]) sum -= readers[u] == @@1@@ ?", "2"),
        ("change[last_reader[v] + @@1@@] -= bytes[v];", "0"),
    ],
    "optimizer/planner/greedy_cuts.cpp": [
        ("fill += bounds.compute(space, layout, s, a, low) + @@2 * hop@@;", "hop"),
        ("taken[i] = low;\n        size[i] = @@r@@;", "1"),
    ],
    "optimizer/planner/layouts.cpp": [
        ("if (best < 0 || @@speed(h) > speed(best)@@) best = h;", "speed(h) < speed(best)"),
        ("if (limit > 0) memory = memory == 0 ? limit : @@std::min(memory, limit)@@;", "std::max(memory, limit)"),
    ],
    "optimizer/planner/least_memory.cpp": [
        ("found.stages[s].recompute = @@(*again)[s] < (*kept)[s]@@;", "(*again)[s] > (*kept)[s]"),
        ("worst = @@std::max(worst, share(layout, s, (*peaks)[s]))@@;", "share(layout, s, (*peaks)[s])"),
    ],
    "optimizer/planner/local_moves.cpp": [
        ("if (moved[i] <= before || @@moved[i] >= after@@) continue;", "moved[i] > after"),
        ("result.back()[i] += @@replicas[i + 1]@@;", "0"),
    ],
    "optimizer/planner/objective.cpp": [
        ("return @@per_microbatch_of_run(other.plan) > per_microbatch_of_run(all[0].plan)@@;", "per_microbatch_of_run(other.plan) < per_microbatch_of_run(all[0].plan)"),
    ],
    "optimizer/planner/pipedream_seeds.cpp": [
        ("return @@stage_of[e.producer] <= stage_of[e.consumer]@@; });", "stage_of[e.producer] < stage_of[e.consumer]"),
        ("layer.backward_input_s = layer.backward_weight_s = node.backward_ms / @@2e3@@;", "1e3"),
    ],
    "optimizer/planner/plan_jobs.cpp": [
        ("const int own = jobs / rounds + (@@r < jobs % rounds@@);", "r <= jobs % rounds"),
        ("return saturating_product(weights, @@2@@ * std::int64_t{arrays}) <= room;", "1"),
    ],
    "optimizer/planner/plan_layers.cpp": [
        ("if (!is_asynchronous(kind) && @@r > microbatches@@) return std::nullopt;", "r >= microbatches"),
        ("if (sum == ranks_ && @@allowed(replicas)@@)", "true"),
        ("if (!plan || @@m < ranks_@@) continue;", "m <= ranks_"),
    ],
    "optimizer/planner/refusal.cpp": [
        ("for (int copies = options.costs.rule_copies - 1; copies >= @@0@@; --copies) {", "1"),
    ],
    "optimizer/planner/stage_bounds.cpp": [
        ("return @@std::min(bytes, held.total())@@;", "std::max(bytes, held.total())"),
        ("if (again) seconds += space.forward_s(sheet, a, b) - (@@b == space.last()@@ ?", "false"),
    ],
    "runtime/schedule/asynchronous.cpp": [
        ("if ((k - warm_up + @@1@@) % place.update_every == 0)", "0"),
        ("(warm_up_of(shape, StageId(s)) + @@1@@) * shape.replicas(StageId(s))", "0"),
    ],
    "runtime/schedule/check.cpp": [
        ("if (@@sent_[message]++@@) fail(r, a, \"is sent twice\");", "false"),
        ("if (@@array < last@@) fail(r, a, \"comes after that of array", "array <= last"),
        ("if (@@shape.microbatches % count != 0@@) {", "shape.microbatches < count"),
    ],
    "runtime/schedule/critical_path.cpp": [
        ("if (@@actions[i].end > actions[latest].end@@) latest = i;", "actions[i].end < actions[latest].end"),
        ("@@timed(other).start > timed(latest).start@@) latest = other;", "timed(other).start < timed(latest).start"),
    ],
    "runtime/schedule/fullest_moments.cpp": [
        ("stage.open -= @@a.op == Op::BackwardWeight@@;", "0"),
        ("@@a.activations <= b.activations@@", "a.activations >= b.activations"),
    ],
    "runtime/schedule/interleaved.cpp": [
        ("const int warm_up = (chunks - 1) * first + (chunks > 1 ? @@2@@ : 1) * (places - 1 - r);", "1"),
        ("for (int i = 0; i < @@microbatches % count@@; ++i) ++sizes[i];", "0"),
    ],
    "runtime/schedule/list_schedule.cpp": [
        ("return cap_.empty() || ranks_[r].stash + 1 + @@reserve@@ <= cap_[r];", "0"),
        ("(time >= time_ - slack && @@stash >= stash_@@)) return;", "stash < stash_"),
    ],
    "runtime/schedule/lower.cpp": [
        ("while (!queue.empty() && @@queue.begin()->first <= own@@) {", "queue.begin()->first == own"),
        ("end.push_back(computation(Op::Reduce, stage, @@microbatch@@));", "0"),
    ],
    "runtime/schedule/one_f_one_b.cpp": [
        ("return (all_replicas(shape) - @@1@@ - before) / shape.replicas(stage);", "0"),
        ("most = std::max(most, (here_and_after - @@1@@) / shape.replicas(StageId(s)));", "0"),
    ],
    "runtime/schedule/peak_bytes.cpp": [
        ("if (a.op != Op::BackwardInput && stashed_[a.stage] == @@1@@)", "2"),
    ],
    "runtime/schedule/simulate.cpp": [
        ("for (Port* port : {&out, &in}) port->pass(start, start + @@seconds@@);", "0"),
        ("meeting.time = @@std::max(meeting.time, ranks_[r].time)@@;", "ranks_[r].time"),
        ("latency += @@wire.pair->latency_s@@;", "0"),
    ],
    "runtime/schedule/steady_step.cpp": [
        ("const int numbers = @@(shape.microbatches + cycle - 1) / cycle * cycle@@;", "shape.microbatches"),
    ],
    "runtime/schedule/v_schedules.cpp": [
        ("turns ? std::array{3, 0, @@4@@}", "3"),
    ],
    "runtime/schedule/versions.cpp": [
        ("@@last_use_[current_] > position@@;", "last_use_[current_] >= 0"),
        ("return warm_up_of(shape, StageId(0)) + @@1@@;", "0"),
    ],
    "runtime/stage/averaged_weights.cpp": [
        ("own.narrow(0, @@shard.begin@@, shard.size()).copy_(averaged);", "0"),
    ],
    "runtime/stage/finite_check.cpp": [
        ("const std::int64_t place = backward ? kLayers - 1 - layer : @@layer@@;", "kLayers - 1 - layer"),
    ],
    "runtime/stage/flat_blocks.cpp": [
        ("by_slot[blocks[b].slot] += @@by_block[b]@@;", "0"),
        ("std::ranges::find_if(blocks, [&](const FlatBlock& b) { return @@b.range.begin >= wanted@@; });", "b.range.begin > wanted"),
    ],
    "runtime/stage/gradient_agreement.cpp": [
        ("if (!@@part.speaks@@) continue;", "true"),
        ("if (troubles[job] > @@0@@) norms[job]", "1"),
    ],
    "runtime/stage/gradient_reducer.cpp": [
        ("const bool open = !buckets_.empty() && @@!std::exchange(behind_table, false)@@ &&", "true"),
        ("@@buckets_[next_].first_layer >= layer@@; ++next_) {", "buckets_[next_].first_layer > layer"),
    ],
    "runtime/stage/layer_runner.cpp": [
        ("[](const GradientPart& a, const GradientPart& b) { return @@a.use > b.use@@; });", "a.use < b.use"),
        ("if (run == Run::Again || @@step.keeps_statistics@@) {", "false"),
        ("const std::int64_t own = position - (run == Run::Evaluate ? @@0@@ : begins_at_[job]);", "begins_at_[job]"),
    ],
    "runtime/stage/parameter_store.cpp": [
        ("return versions_.at(version).pins > 0 || @@version >= keep_from_@@;", "version > keep_from_"),
        ("for (TiedUse& use : tied_) @@use.gradient.zero_();@@", ""),
        ("own.slots_.back().offset -= @@from@@;", "0"),
    ],
    "runtime/stage/running_statistics.cpp": [
        ("buffer.copy_(buffer.is_floating_point() ? mean : @@mean.ceil()@@);", "mean"),
        ("if (@@microbatch.value >= replicas@@) join();", "microbatch.value > replicas"),
    ],
    "runtime/stage/stage_borders.cpp": [
        ("if (route.gradient) shape[0] *= @@crossing.gradient_parts()@@;", "1"),
        ("tensors.push_back(@@source.contiguous()@@);", "source"),
        ("value.narrow(0, @@static_cast<std::int64_t>(i) * rows@@, rows));", "0"),
    ],
    "runtime/stage/stage_executor.cpp": [
        ("most = @@value * context_.loss_scales[j]@@; most > 0)", "value"),
        ("if (@@options_.gradient_scale != 1@@)", "options_.gradient_scale > 1"),
    ],
    "runtime/stage/stage_heads.cpp": [
        ("const std::int64_t first = position - @@position % microbatches_per_update_@@;", "0"),
        ("of_jobs.push_back({.share = weight * (own / all), .unit = weight / @@all@@});", "own"),
    ],
    "runtime/stage/state_shards.cpp": [
        ("for (std::size_t peer = @@1@@; peer < ranges_.size(); ++peer) {", "2"),
    ],
    "runtime/stage/tied_exchange.cpp": [
        ("Partners partners{.from = others[mine % @@others.size()@@], .to = {}};", "ours.size()"),
        ("@@std::ranges::stable_sort(parts, {}, [](const auto& part) { return part.first; });@@", ""),
    ],
    "runtime/stage/update_rule.cpp": [
        ("return segment.updates == 0 && @@number(&RuleOptions::dampening) != 0@@;", "number(&RuleOptions::dampening) == 0"),
        (".keep = static_cast<T>(apart ? 1 - @@flat.lr * decay@@ : 1),", "decay"),
    ],
    "runtime/checkpoint/carried.cpp": [
        ("whole.narrow(0, row, microbatches[m].samples).clone());\n      row += @@microbatches[m].samples@@;", "0"),
    ],
    "runtime/checkpoint/checkpoint.cpp": [
        ("values[stage * 3 + 2] = static_cast<std::int64_t>(@@digest.hash.low@@);", "digest.hash.high"),
        ("FlatRange there{std::max(slot.offset, @@shard.begin@@),", "slot.offset"),
        ("if (std::isnan(least)) return name + @@\" holds NaN\"@@;", "\" holds Infinity\""),
    ],
    "runtime/checkpoint/job_checkpoints.cpp": [
        ("const std::string& own = values.size() == jobs ? values[@@job@@] : value;", "0"),
        ("job.updates == jobs.front().updates && @@job.is_new == jobs.front().is_new@@;", "true"),
    ],
    "runtime/checkpoint/stash.cpp": [
        ("if (@@updates != usual@@) state", "false"),
    ],
    "runtime/saved/checkpoint_folder.cpp": [
        ("head->run != run || @@++kept <= keep.newest@@) continue;", "++kept < keep.newest"),
        ("const bool stays = keep.every != 0 && @@head->step % keep.every == 0@@;", "head->step % keep.every != 0"),
        ("if (is_step && @@name <= step_name(step)@@) newest", "name < step_name(step)"),
        ("if (error || !is_own || @@++kept <= newest@@) continue;", "++kept < newest"),
    ],
    "runtime/saved/manifest.cpp": [
        ("if (@@job.step > array.step || job.position > array.position@@)", "job.step > array.step"),
        ("if (@@one.step >= 0@@ || one.since > 0)", "one.step > 0"),
    ],
    "runtime/saved/tensor_file.cpp": [
        ("if (@@begin != expected_begin@@) {", "begin < expected_begin"),
        ("entry.end - entry.begin != bytes || @@entry.end > payload_bytes@@) {", "entry.end >= payload_bytes"),
    ],
    "runtime/comm/chain_reduce.cpp": [
        ("return first + chunk % (@@route_.segments[s + 1] - first@@);", "1"),
        ("if (@@segment_ > 0@@) expect(Message::Forward", "segment_ > 1"),
    ],
    "runtime/comm/channel_communicator.cpp": [
        ("if (along_tree && rank_ == root.value && @@rank_ != 0@@) to.push_back(0);", "rank_ == 0"),
        ("const std::int64_t chunk = (flat.numel() + @@size() - 1@@) / size();", "0"),
        ("row += @@tree.members[child]@@;", "1"),
    ],
    "runtime/comm/clock_offset.cpp": [
        ("best = {.ns = back + @@round_trip / 2@@, .round_trip_ns = round_trip};", "round_trip"),
    ],
    "runtime/comm/emulated_links.cpp": [
        ("free = std::max(free, @@left@@) + message->length;", "free"),
        ("link.collectives_free = @@left@@;", "message->posted"),
    ],
    "runtime/comm/emulated_ports.cpp": [
        ("while (place > 0 && @@newest_[place - 1].posted > posted@@) --place;", "newest_[place - 1].posted >= posted"),
        ("std::max({posted, out.free_at(posted), @@in.free_at(posted)@@}) + length;", "posted"),
    ],
    "runtime/comm/memory_store.cpp": [
        ("inner_->set(@@prefix_ + \"/\" + key@@, value);", "key"),
    ],
    "runtime/comm/shared_memory.cpp": [
        ("now % 2 == @@0@@) {", "1"),
        ("if (@@end - begin >= kQueueEntries@@) peers_[peer]->ring();", "false"),
    ],
    "runtime/comm/tcp_channel.cpp": [
        ("if (@@early.bytes != to.bytes@@) return fail_by_length(to, early.bytes);", "early.bytes > to.bytes"),
        ("early_bytes_ -= @@early.bytes@@;", "0"),
        ("if (peer.way == Way::Calls && @@hello.rank < rank()@@) return kCrossing;", "hello.rank > rank()"),
    ],
    "runtime/comm/wire_checksum.cpp": [
        ("@@hash_of(message_.tensor) == *hash_.const_data_ptr<std::int64_t>()@@)", "hash_of(message_.tensor) != *hash_.const_data_ptr<std::int64_t>()"),
    ],
}
