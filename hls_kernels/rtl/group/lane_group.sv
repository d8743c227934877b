// The sixteen lanes of vector_ops' chain: the first look, the second and the codes, a word of
// sixteen values a cycle each, with the peaks, marks and sums of rows that the row scalars between
// them need. Rows follow one another without a gap.
//
// The three are as far apart as the kernel's FIFOs and row scalars put them, so each has its own
// valid bit. What belongs to a row (shifts, factors) comes with each of its words.
module lane_group (
    input wire clk,
    input wire [2:0] op,
    input wire has_bias,
    input wire [4:0] input_shift,
    // ---- first look ----
    input wire first_valid,
    input wire first_begins,
    input wire first_ends,
    input wire [32*16-1:0] product_sums,
    input wire [32*16-1:0] others,
    input wire [32*16-1:0] mantissas,
    input wire [32*16-1:0] biases,
    input wire [5*16-1:0] downs,
    input wire [15:0] live,
    input wire [4:0] context_right,
    input wire [31:0] fixed_mantissa,
    input wire [31:0] fixed_limit,
    input wire [31:0] fixed_half,
    input wire [4:0] fixed_right,
    input wire [4:0] fixed_left,
    input wire fixed_keep,
    output wire value_valid,
    output wire [32*16-1:0] values,
    output wire value_peak_valid,
    output wire [31:0] value_peak,
    output wire value_mark_valid,
    output wire value_mark,
    // ---- second look ----
    input wire second_valid,
    input wire second_begins,
    input wire second_ends,
    input wire [32*16-1:0] owns,
    input wire [32*16-1:0] seconds,
    input wire [32*16-1:0] factors,
    input wire [4:0] room,
    input wire is_zero,
    input wire is_rotated,
    input wire lost,
    input wire [4:0] room_gate,
    input wire [4:0] room_up,
    input wire [31:0] gate_mantissa,
    input wire [31:0] gate_limit,
    input wire [31:0] gate_half,
    input wire [4:0] gate_right,
    input wire [4:0] gate_left,
    input wire gate_keep,
    output wire result_valid,
    output wire [32*16-1:0] results,
    output wire result_peak_valid,
    output wire [31:0] result_peak,
    output wire result_mark_valid,
    output wire result_mark,
    output wire squares_valid,
    output wire [45:0] squares,
    // ---- codes ----
    input wire code_in_valid,
    input wire [32*16-1:0] code_in,
    input wire [4:0] code_room,
    input wire [16:0] code_factor,
    output wire code_valid,
    output wire [8*16-1:0] codes
);
    // ---- the lanes ----
    wire [15:0] value_marks, result_marks;
    wire [32*16-1:0] square_word;

    genvar i;
    generate
        for (i = 0; i < 16; i = i + 1) begin : lane
            first_look take (
                .clk(clk),
                .product_sum(product_sums[32*i+:32]),
                .other(others[32*i+:32]),
                .mantissa(mantissas[32*i+:32]),
                .bias(biases[32*i+:32]),
                .down(downs[5*i+:5]),
                .live(live[i]),
                .op(op),
                .has_bias(has_bias),
                .input_shift(input_shift),
                .context_right(context_right),
                .fixed_mantissa(fixed_mantissa),
                .limit(fixed_limit),
                .half(fixed_half),
                .right(fixed_right),
                .left(fixed_left),
                .keep(fixed_keep),
                .out(values[32*i+:32]),
                .changed(value_marks[i])
            );
            second_look transform (
                .clk(clk),
                .own(owns[32*i+:32]),
                .second(seconds[32*i+:32]),
                .factor(factors[32*i+:32]),
                .op(op),
                .room(room),
                .is_zero(is_zero),
                .is_rotated(is_rotated),
                .lost(lost),
                .room_gate(room_gate),
                .room_up(room_up),
                .mantissa(gate_mantissa),
                .limit(gate_limit),
                .half(gate_half),
                .right(gate_right),
                .left(gate_left),
                .keep(gate_keep),
                .out(results[32*i+:32]),
                .changed(result_marks[i]),
                .square(square_word[32*i+:32])
            );
            quantise encode (
                .clk(clk),
                .value(code_in[32*i+:32]),
                .room(code_room),
                .factor(code_factor),
                .code(codes[8*i+:8])
            );
        end
    endgenerate

    // ---- rows at the first look ----
    wire value_begins, value_ends;

    delay #(.WIDTH(3), .DEPTH(latency::FIRST_LOOK)) beside_values (
        .clk(clk),
        .in({first_valid, first_begins, first_ends}),
        .out({value_valid, value_begins, value_ends})
    );
    row_peak peak_of_values (
        .clk(clk),
        .valid(value_valid),
        .first(value_begins),
        .last(value_ends),
        .word(values),
        .out_valid(value_peak_valid),
        .out(value_peak)
    );
    row_mark mark_of_values (
        .clk(clk),
        .valid(value_valid),
        .first(value_begins),
        .last(value_ends),
        .marks(value_marks),
        .out_valid(value_mark_valid),
        .out(value_mark)
    );

    // ---- rows at the second look ----
    wire square_valid, square_begins, square_ends, result_begins, result_ends;

    delay #(.WIDTH(3), .DEPTH(latency::SQUARE)) beside_squares (
        .clk(clk),
        .in({second_valid, second_begins, second_ends}),
        .out({square_valid, square_begins, square_ends})
    );
    row_total total_of_squares (
        .clk(clk),
        .valid(square_valid),
        .first(square_begins),
        .last(square_ends),
        .word(square_word),
        .out_valid(squares_valid),
        .out(squares)
    );
    delay #(.WIDTH(3), .DEPTH(latency::SECOND_LOOK - latency::SQUARE)) beside_results (
        .clk(clk),
        .in({square_valid, square_begins, square_ends}),
        .out({result_valid, result_begins, result_ends})
    );
    row_peak peak_of_results (
        .clk(clk),
        .valid(result_valid),
        .first(result_begins),
        .last(result_ends),
        .word(results),
        .out_valid(result_peak_valid),
        .out(result_peak)
    );
    row_mark mark_of_results (
        .clk(clk),
        .valid(result_valid),
        .first(result_begins),
        .last(result_ends),
        .marks(result_marks),
        .out_valid(result_mark_valid),
        .out(result_mark)
    );

    delay #(.WIDTH(1), .DEPTH(latency::QUANTISE)) beside_codes (
        .clk(clk), .in(code_in_valid), .out(code_valid));
endmodule
