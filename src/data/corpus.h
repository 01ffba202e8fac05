// Documents to learn a vocabulary from or to turn into tokens, visited one at a time so that none needs to stay in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

class Corpus {
public:
    virtual ~Corpus() = default;
    virtual int64_t documents() const = 0;
    virtual int64_t document_bytes(int64_t document) const = 0;
    // Calls `use` once with the document's text, which lives until it returns. Safe from several threads.
    virtual void visit(int64_t document, const std::function<void(std::string_view text)>& use) const = 0;
};

// Documents in memory.
class TextCorpus : public Corpus {
public:
    explicit TextCorpus(std::vector<std::string> texts) : texts_(std::move(texts)) {}
    int64_t documents() const override { return static_cast<int64_t>(texts_.size()); }
    int64_t document_bytes(int64_t document) const override { return static_cast<int64_t>(texts_[document].size()); }
    void visit(int64_t document, const std::function<void(std::string_view)>& use) const override { use(texts_[document]); }

private:
    std::vector<std::string> texts_;
};

}  // namespace lockstep::data
