// What vector_ops' first look does with one lane (`first_value` of vector_ops/chain.hpp): a sum of
// products to a value, to fixed point, with its bias and the residual stream, as far as the
// operation goes. Embeddings and the residual stream come by here too.
module first_look (
    input wire clk,
    input wire signed [31:0] product_sum,
    input wire signed [31:0] other,  // residual stream or embedding
    input wire signed [31:0] mantissa,
    input wire signed [31:0] bias,
    input wire [4:0] down,
    input wire live,                 // the lane holds a value of the row
    // of the task and the row
    input wire [2:0] op,
    input wire has_bias,
    input wire [4:0] input_shift,
    input wire [4:0] context_right,
    input wire signed [31:0] fixed_mantissa,
    input wire signed [31:0] limit,
    input wire signed [31:0] half,
    input wire [4:0] right,
    input wire [4:0] left,
    input wire keep,
    output reg signed [31:0] out,
    output reg changed
);
    localparam AT_FIXED = latency::DEQUANTISE + 1;
    localparam AT_SHIFT = AT_FIXED + latency::PRODUCT + 1;
    localparam AT_RESIDUAL = AT_SHIFT + latency::ROUNDED_SHIFT;
    localparam AT_CHOICE = AT_RESIDUAL + latency::RESIDUAL;
    localparam SHIFTER = 32 + 32 + 5 + 5 + 1;

    // ---- a value: dequantised, or a context at its row's exponent ----
    wire signed [31:0] dequantised, aligned;
    reg signed [31:0] value;
    wire signed [31:0] sum_8;
    wire [4:0] context_right_8;
    wire is_context_8, is_context;

    dequantise to_value (
        .clk(clk),
        .acc(product_sum),
        .mantissa(mantissa),
        .down(down),
        .input_shift(input_shift),
        .out(dequantised)
    );
    delay #(.WIDTH(38), .DEPTH(latency::DEQUANTISE - latency::SHIFT)) for_context (
        .clk(clk), .in({product_sum, context_right, op == operation::CONTEXT}),
        .out({sum_8, context_right_8, is_context_8}));
    shift_right to_row (.clk(clk), .value(sum_8), .by(context_right_8), .out(aligned));
    delay #(.WIDTH(1), .DEPTH(latency::SHIFT)) beside_row (
        .clk(clk), .in(is_context_8), .out(is_context));
    always @(posedge clk) value <= is_context ? aligned : dequantised;

    // ---- fixed point; an embedding has it already, but for the shift ----
    wire signed [31:0] mantissa_fixed, scaled, other_shift, limit_shift, half_shift, fixed_value;
    wire [4:0] right_shift, left_shift;
    wire keep_shift, is_embed, fixed_changed;
    reg signed [31:0] to_shift;

    delay #(.WIDTH(32), .DEPTH(AT_FIXED)) for_fixed (
        .clk(clk), .in(fixed_mantissa), .out(mantissa_fixed));
    product scale (.clk(clk), .a(value), .b(mantissa_fixed), .out(scaled));
    delay #(.WIDTH(33), .DEPTH(AT_SHIFT - 1)) for_embedding (
        .clk(clk), .in({other, op == operation::EMBED}), .out({other_shift, is_embed}));
    always @(posedge clk) to_shift <= is_embed ? other_shift : scaled;
    delay #(.WIDTH(SHIFTER), .DEPTH(AT_SHIFT)) for_shift (
        .clk(clk),
        .in({limit, half, right, left, keep}),
        .out({limit_shift, half_shift, right_shift, left_shift, keep_shift})
    );
    rounded_shift move (
        .clk(clk),
        .value(to_shift),
        .limit(limit_shift),
        .half(half_shift),
        .right(right_shift),
        .left(left_shift),
        .keep(keep_shift),
        .out(fixed_value),
        .changed(fixed_changed)
    );

    // ---- bias and residual stream ----
    wire signed [31:0] bias_residual, other_residual, biased, sum;
    wire biased_changed, sum_changed;

    delay #(.WIDTH(32), .DEPTH(AT_RESIDUAL)) for_bias (
        .clk(clk), .in(bias), .out(bias_residual));
    delay #(.WIDTH(32), .DEPTH(AT_RESIDUAL - AT_SHIFT + 1)) for_residual (
        .clk(clk), .in(other_shift), .out(other_residual));
    residual add (
        .clk(clk),
        .value(fixed_value),
        .bias(bias_residual),
        .x(other_residual),
        .biased(biased),
        .biased_changed(biased_changed),
        .out(sum),
        .changed(sum_changed)
    );

    // ---- what the operation takes of it ----
    wire signed [31:0] value_choice, fixed_choice, other_choice;
    wire fixed_changed_choice, has_bias_choice, live_choice;
    wire [2:0] op_choice;

    delay #(.WIDTH(32), .DEPTH(AT_CHOICE - AT_FIXED)) for_value (
        .clk(clk), .in(value), .out(value_choice));
    delay #(.WIDTH(65), .DEPTH(latency::RESIDUAL)) for_others (
        .clk(clk), .in({fixed_value, fixed_changed, other_residual}),
        .out({fixed_choice, fixed_changed_choice, other_choice}));
    delay #(.WIDTH(5), .DEPTH(AT_CHOICE)) for_op (
        .clk(clk), .in({op, has_bias, live}), .out({op_choice, has_bias_choice, live_choice}));

    wire is_value = op_choice == operation::GATE || op_choice == operation::CONTEXT
        || op_choice == operation::HEAD && !has_bias_choice;
    reg signed [31:0] chosen;
    reg chosen_changed;
    always @* begin
        if (is_value) begin
            chosen = value_choice;
            chosen_changed = 1'b0;
        end else if (op_choice == operation::NORM) begin
            chosen = other_choice;
            chosen_changed = 1'b0;
        end else if (op_choice == operation::EMBED) begin
            chosen = fixed_choice;
            chosen_changed = fixed_changed_choice;
        end else if (op_choice == operation::RESIDUAL) begin
            chosen = sum;
            chosen_changed = fixed_changed_choice | sum_changed;
        end else begin
            chosen = biased;
            chosen_changed = fixed_changed_choice | biased_changed;
        end
    end
    always @(posedge clk) begin
        out <= live_choice ? chosen : 32'sd0;
        changed <= live_choice & chosen_changed;
    end
endmodule
