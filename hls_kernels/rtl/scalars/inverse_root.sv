// 1 / sqrt of a scale above zero: a seed of six bits, then three steps of Newton's method.
module inverse_root (
    input wire clk,
    input wire [30:0] mantissa,
    input wire signed [31:0] exponent,
    output wire [31:0] out_mantissa,
    output wire signed [31:0] out_exponent
);
    localparam STEP = 3 * latency::PRODUCT + 1;

    // ---- the mantissa in [1/4, 1), its seed, and half of the exponent ----
    reg [31:0] even_1;
    reg signed [30:0] half_exponent;
    reg signed [31:0] result_exponent;
    wire signed [31:0] half_2, exponent_end;
    wire [16:0] seed;
    wire [5:0] place = even_1[31:26] - 6'd16;

    always @(posedge clk) begin
        even_1 <= exponent[0] ? {mantissa, 1'b0} : {1'b0, mantissa};
        half_exponent <= exponent[31:1];
        result_exponent <= -32'sd46 - 32'(half_exponent);
    end
    root_seed seeds (.clk(clk), .place(place), .seed(seed));
    delay #(.WIDTH(32), .DEPTH(1)) for_step (
        .clk(clk), .in({1'b0, even_1[31:1]}), .out(half_2));
    wire unused = even_1[0];

    // ---- three steps, and the root as a scale ----
    wire signed [31:0] half_a, half_b, half_c;
    wire signed [32:0] y_a, y_b, y_c;
    wire unused_half = |half_c;

    newton_step step_a (
        .clk(clk), .half(half_2), .y({1'b0, seed, 15'd0}), .half_out(half_a), .y_out(y_a));
    newton_step step_b (.clk(clk), .half(half_a), .y(y_a), .half_out(half_b), .y_out(y_b));
    newton_step step_c (.clk(clk), .half(half_b), .y(y_b), .half_out(half_c), .y_out(y_c));
    delay #(.WIDTH(32), .DEPTH(3 * STEP)) for_end (
        .clk(clk), .in(result_exponent), .out(exponent_end));
    normalise #(.WIDTH(33)) normal (
        .clk(clk),
        .value(y_c),
        .exponent(exponent_end),
        .out_mantissa(out_mantissa),
        .out_exponent(out_exponent)
    );
endmodule
