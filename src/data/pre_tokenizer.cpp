#include "data/pre_tokenizer.h"

namespace lockstep::data {

PreTokenizerRun::PreTokenizerRun(const std::vector<PreTokenizerStep>& steps) : steps_(steps), buffers_(steps.size()) {
    for (const PreTokenizerStep& step : steps_) {
        splitter_of_.push_back(splitters_.size());
        if (const auto* split = std::get_if<SplitStep>(&step)) splitters_.emplace_back(split->pattern);
    }
}

void PreTokenizerRun::run(size_t step, std::string_view text, Before before, Sink sink) {
    if (text.empty()) return;
    if (step == steps_.size()) return sink(text);
    if (const auto* how = std::get_if<SplitStep>(&steps_[step])) return split(step, *how, text, before, sink);
    if (const auto* how = std::get_if<MetaspaceStep>(&steps_[step])) return metaspace(step, *how, text, before, sink);
    if (before.continues || text.front() == ' ') return run(step + 1, text, before, sink);
    buffers_[step].assign(1, ' ');
    buffers_[step] += text;
    run(step + 1, buffers_[step], before, sink);
}

void PreTokenizerRun::split(size_t step, const SplitStep& how, std::string_view text, Before before, Sink sink) {
    using Behavior = SplitStep::Behavior;
    PreSplitter& splitter = splitters_[splitter_of_[step]];
    const bool is_last = step + 1 == steps_.size();
    const auto hand_out = [&](std::string_view piece) {
        if (is_last) return sink(piece);
        run(step + 1, piece, before, sink);
        before = {false, false};
    };
    splitter.start(text);
    if (how.behavior == Behavior::isolated) {
        for (std::string_view piece = splitter.next(); !piece.empty(); piece = splitter.next()) hand_out(piece);
        return;
    }
    std::string_view held;  // what the next piece may still become a part of
    bool held_matches = false;
    for (std::string_view piece = splitter.next(); !piece.empty(); piece = splitter.next()) {
        const bool matches = splitter.is_match() != how.invert;
        if (how.behavior == Behavior::removed) {
            if (!matches) hand_out(piece);
            else before = {false, false};
            continue;
        }
        const bool joins = !held.empty() && (how.behavior == Behavior::contiguous             ? matches == held_matches
                                             : how.behavior == Behavior::merged_with_previous ? matches && !held_matches
                                                                                              : !matches && held_matches);
        if (joins) {
            held = {held.data(), held.size() + piece.size()};
        } else {
            if (!held.empty()) hand_out(held);
            held = piece;
        }
        held_matches = matches;
    }
    if (!held.empty()) hand_out(held);
}

void PreTokenizerRun::metaspace(size_t step, const MetaspaceStep& how, std::string_view text, Before before, Sink sink) {
    using Prepend = MetaspaceStep::Prepend;
    std::string& marked = buffers_[step];
    marked.clear();
    const bool wanted = how.prepend == Prepend::always || (how.prepend == Prepend::first && before.nothing);
    if (wanted && !before.continues && text.front() != ' ' && !text.starts_with(how.mark)) marked = how.mark;
    for (size_t done = 0; done < text.size();) {
        const size_t space = std::min(text.find(' ', done), text.size());
        marked += text.substr(done, space - done);
        if (space < text.size()) marked += how.mark;
        done = space + 1;
    }
    if (!how.split) return run(step + 1, marked, before, sink);
    for (size_t begin = 0; begin < marked.size();) {
        const size_t end = std::min(marked.find(how.mark, begin + 1), marked.size());
        run(step + 1, std::string_view(marked).substr(begin, end - begin), before, sink);
        before = {false, false};
        begin = end;
    }
}

}  // namespace lockstep::data
