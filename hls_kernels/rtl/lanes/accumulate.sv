// A channel of attention's context: what was summed before, moved down with rounding, and the sums
// of both codes of the weights.
module accumulate (
    input wire clk,
    input wire signed [31:0] context_value,
    input wire signed [31:0] upper,
    input wire signed [31:0] lower,
    input wire [4:0] down,
    output reg signed [31:0] out
);
    reg signed [31:0] rounded, both, both_half, both_3;
    reg [4:0] down_1;
    wire signed [31:0] moved;
    reg [2:0] gone;

    always @(posedge clk) begin
        rounded <= context_value + 32'((32'd1 << down) >> 1);
        down_1 <= down;
        gone <= {gone[1:0], down == 5'd31};
        both <= (upper <<< 7) + lower;
        both_half <= both + 32'sd32;
        both_3 <= both_half >>> 6;
        out <= (gone[2] ? 32'sd0 : moved) + both_3;
    end
    shift_right lower_context (.clk(clk), .value(rounded), .by(down_1), .out(moved));
endmodule
