fn wide_add(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn wide_subtract(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

fn wide_negative(a: vec2<u32>) -> vec2<u32> {
    return wide_subtract(vec2<u32>(0u, 0u), a);
}

// By halves of words, whose products fit in a word.
fn wide_multiply(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let a0 = a.x & 0xffffu;
    let a1 = a.x >> 16u;
    let b0 = b.x & 0xffffu;
    let b1 = b.x >> 16u;
    let low = a0 * b0;
    let first = a1 * b0 + (low >> 16u);
    let second = a0 * b1 + (first & 0xffffu);
    let high = a1 * b1 + (first >> 16u) + (second >> 16u);
    return vec2<u32>((second << 16u) | (low & 0xffffu), high + a.x * b.y + a.y * b.x);
}

fn wide_less_u(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.y < b.y || (a.y == b.y && a.x < b.x);
}

fn wide_less_i(a: vec2<u32>, b: vec2<u32>) -> bool {
    return bitcast<i32>(a.y) < bitcast<i32>(b.y) || (a.y == b.y && a.x < b.x);
}

fn wide_left(a: vec2<u32>, n: u32) -> vec2<u32> {
    if n == 0u { return a; }
    if n >= 32u { return vec2<u32>(0u, a.x << (n - 32u)); }
    return vec2<u32>(a.x << n, (a.y << n) | (a.x >> (32u - n)));
}

fn wide_right_u(a: vec2<u32>, n: u32) -> vec2<u32> {
    if n == 0u { return a; }
    if n >= 32u { return vec2<u32>(a.y >> (n - 32u), 0u); }
    return vec2<u32>((a.x >> n) | (a.y << (32u - n)), a.y >> n);
}

fn wide_right_i(a: vec2<u32>, n: u32) -> vec2<u32> {
    let high = bitcast<i32>(a.y);
    if n == 0u { return a; }
    if n >= 32u { return vec2<u32>(bitcast<u32>(high >> (n - 32u)), bitcast<u32>(high >> 31u)); }
    return vec2<u32>((a.x >> n) | (a.y << (32u - n)), bitcast<u32>(high >> n));
}

fn wide_shift_left(a: vec2<u32>, n: vec2<u32>) -> vec2<u32> {
    if n.y != 0u || n.x >= 64u { return vec2<u32>(0u, 0u); }
    return wide_left(a, n.x);
}

fn wide_shift_right_u(a: vec2<u32>, n: vec2<u32>) -> vec2<u32> {
    if n.y != 0u || n.x >= 64u { return vec2<u32>(0u, 0u); }
    return wide_right_u(a, n.x);
}

fn wide_shift_right_i(a: vec2<u32>, n: vec2<u32>) -> vec2<u32> {
    return wide_right_i(a, select(n.x, 63u, n.y != 0u || n.x >= 64u));
}

// Long division, bit by bit from the first one; 0 by 0.
fn wide_floor_divide_u(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    var quotient = vec2<u32>(0u, 0u);
    if all(b == quotient) { return quotient; }
    if a.y == 0u && b.y == 0u { return vec2<u32>(a.x / b.x, 0u); }
    var rest = vec2<u32>(0u, 0u);
    var left = a;
    for (var i = 0u; i < 64u; i++) {
        let carried = rest.y >> 31u;
        rest = wide_left(rest, 1u) | vec2<u32>(left.y >> 31u, 0u);
        left = wide_left(left, 1u);
        quotient = wide_left(quotient, 1u);
        if carried != 0u || !wide_less_u(rest, b) {
            rest = wide_subtract(rest, b);
            quotient.x |= 1u;
        }
    }
    return quotient;
}

fn wide_floor_divide_i(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let negative_a = (a.y >> 31u) != 0u;
    let negative_b = (b.y >> 31u) != 0u;
    let dividend = select(a, wide_negative(a), negative_a);
    let divisor = select(b, wide_negative(b), negative_b);
    let quotient = wide_floor_divide_u(dividend, divisor);
    if negative_a == negative_b || all(b == vec2<u32>(0u, 0u)) { return quotient; }
    let is_whole = all(wide_multiply(quotient, divisor) == dividend);
    return wide_subtract(wide_negative(quotient), vec2<u32>(select(1u, 0u, is_whole), 0u));
}

fn wide_of_i32(x: i32) -> vec2<u32> {
    return vec2<u32>(bitcast<u32>(x), bitcast<u32>(x >> 31u));
}

fn wide_of_u32(x: u32) -> vec2<u32> {
    return vec2<u32>(x, 0u);
}

// The nearest float, of equally near ones the even one: the first 24 bits, rounded by the rest.
fn f32_of_wide_u(a: vec2<u32>) -> f32 {
    if all(a == vec2<u32>(0u, 0u)) { return 0.0; }
    let zeros = select(countLeadingZeros(a.y), 32u + countLeadingZeros(a.x), a.y == 0u);
    let bits = wide_left(a, zeros);
    let first = bits.y >> 8u;
    let rest = ((bits.y & 0xffu) << 1u) | select(0u, 1u, bits.x != 0u);
    let up = rest > 0x100u || (rest == 0x100u && (first & 1u) != 0u);
    let power = bitcast<f32>((127u + 40u - zeros) << 23u);
    return f32(first + select(0u, 1u, up)) * power;
}

fn f32_of_wide_i(a: vec2<u32>) -> f32 {
    if (a.y >> 31u) != 0u { return -f32_of_wide_u(wide_negative(a)); }
    return f32_of_wide_u(a);
}

// The whole part of a float below 2⁶⁴.
fn wide_of_magnitude(bits: u32) -> vec2<u32> {
    let exponent = bits >> 23u;
    if exponent < 127u { return vec2<u32>(0u, 0u); }
    let digits = vec2<u32>((bits & 0x7fffffu) | 0x800000u, 0u);
    if exponent < 150u { return wide_right_u(digits, 150u - exponent); }
    return wide_left(digits, exponent - 150u);
}

// What is too large becomes the largest or the smallest integer, and NaN 0.
fn wide_u_of_f32(x: f32) -> vec2<u32> {
    let bits = bitcast<u32>(x);
    if (bits >> 31u) != 0u || bits > 0x7f800000u { return vec2<u32>(0u, 0u); }
    if bits >= 0x5f800000u { return vec2<u32>(0xffffffffu, 0xffffffffu); }
    return wide_of_magnitude(bits);
}

fn wide_i_of_f32(x: f32) -> vec2<u32> {
    let bits = bitcast<u32>(x) & 0x7fffffffu;
    let is_negative = (bitcast<u32>(x) >> 31u) != 0u;
    if bits > 0x7f800000u { return vec2<u32>(0u, 0u); }
    if bits >= 0x5f000000u {
        return select(vec2<u32>(0xffffffffu, 0x7fffffffu), vec2<u32>(0u, 0x80000000u), is_negative);
    }
    let whole = wide_of_magnitude(bits);
    return select(whole, wide_negative(whole), is_negative);
}
