// What is particular to requests for embeddings and for rerank scores.
#pragma once

#include "request.hpp"

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace llamaserve {

class Model;

// Tokenizes an input to embed, or a query and document to score together. Returns why it can't be served, if so.
// Thread-safe: touches no context. Throws InvalidRequest for texts and tokens that can't be used.
std::optional<Failure> prepare_embedding(Request& request, const Model& model);

// The values of `in`, cut to `params.n_dims` and brought to length 1 in the norm that `params` names.
std::vector<float> normalized(std::span<const float> in, const EmbeddingParams& params);

// JSON of the values: a list, or with `n_columns` above 0 a list of rows. The shortest digits that give the same floats
// again; what is no finite number becomes null.
std::string floats_json(std::span<const float> values, size_t n_columns);

} // namespace llamaserve
