// The sum of two scales; if one is zero, the other.
module plus (
    input wire clk,
    input wire signed [31:0] a_mantissa,
    input wire signed [31:0] a_exponent,
    input wire signed [31:0] b_mantissa,
    input wire signed [31:0] b_exponent,
    output reg [31:0] out_mantissa,
    output reg signed [31:0] out_exponent
);
    localparam AT_SUM = 2 + latency::SHIFT + 1;
    localparam DONE = AT_SUM + latency::NORMALISE;

    // ---- both at the larger exponent ----
    reg signed [31:0] a_below, b_below, exponent_1;
    wire signed [31:0] a_mantissa_2, b_mantissa_2, a_moved, b_moved, exponent_sum;
    reg [4:0] a_by, b_by;
    reg signed [32:0] sum;

    delay #(.WIDTH(64), .DEPTH(2)) for_shift (
        .clk(clk), .in({a_mantissa, b_mantissa}), .out({a_mantissa_2, b_mantissa_2}));
    shift_right lower_a (.clk(clk), .value(a_mantissa_2), .by(a_by), .out(a_moved));
    shift_right lower_b (.clk(clk), .value(b_mantissa_2), .by(b_by), .out(b_moved));
    delay #(.WIDTH(32), .DEPTH(AT_SUM - 1)) for_sum (
        .clk(clk), .in(exponent_1), .out(exponent_sum));
    always @(posedge clk) begin
        a_below <= b_exponent - a_exponent;
        b_below <= a_exponent - b_exponent;
        exponent_1 <= a_exponent > b_exponent ? a_exponent : b_exponent;
        a_by <= a_below < 0 ? 5'd0 : a_below > 32'sd31 ? 5'd31 : a_below[4:0];
        b_by <= b_below < 0 ? 5'd0 : b_below > 32'sd31 ? 5'd31 : b_below[4:0];
        sum <= 33'(a_moved) + 33'(b_moved);
    end

    // ---- the sum, or the one that is not zero ----
    wire [31:0] mantissa, other_mantissa;
    wire signed [31:0] exponent, other_exponent;
    wire alone_done;
    reg alone;
    reg [63:0] other;

    normalise #(.WIDTH(33)) normal (
        .clk(clk),
        .value(sum),
        .exponent(exponent_sum),
        .out_mantissa(mantissa),
        .out_exponent(exponent)
    );
    delay #(.WIDTH(65), .DEPTH(DONE - 1)) for_other (
        .clk(clk), .in({alone, other}), .out({alone_done, other_mantissa, other_exponent}));
    always @(posedge clk) begin
        alone <= a_mantissa == 0 || b_mantissa == 0;
        other <= a_mantissa == 0 ? {b_mantissa, b_exponent} : {a_mantissa, a_exponent};
        out_mantissa <= alone_done ? other_mantissa : mantissa;
        out_exponent <= alone_done ? other_exponent : exponent;
    end
endmodule
