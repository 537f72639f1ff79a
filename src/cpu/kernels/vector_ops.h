// Small vector kernels of the attention side and of SwiGLU. Each element's arithmetic is fixed per
// kernel set, whatever its place in the vector or the length.
//
// Thread rules: pure functions over caller memory. Output may be the input unless said otherwise.
#pragma once

namespace expertplex::cpu {

// y = x / sqrt(mean(x^2) + eps) * weight, over count elements.
void rms_norm(const float* x, const float* weight, int count, float eps, float* y);

// Rotary embedding of one head in place, half-split pairing: component j < half pairs with j +
// half; cosines and sines [half]. Components from 2 * half on are not touched.
void rotate_half_split(float* head, const float* cosines, const float* sines, int half);

// y = silu(gate) * up, silu(z) = z / (1 + exp(-z)).
void silu_multiply(const float* gate, const float* up, int count, float* y);

// y = 1 / (1 + exp(-x)).
void sigmoid(const float* x, int count, float* y);

// y += factor * x.
void add_scaled(float factor, const float* x, int count, float* y);

// y *= factor.
void multiply_by(float factor, int count, float* y);

// The index of the largest element, the lowest of equals; NaN never wins. -1 if there is none.
int argmax(const float* x, int count);

// y = exp(scale * (x - max(x))); returns the sum of y: y / sum is the softmax of scale * x, scale >
// 0.
float softmax_numerators(const float* x, int count, float scale, float* y);

}  // namespace expertplex::cpu
