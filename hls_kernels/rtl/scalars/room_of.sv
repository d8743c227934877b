// The left shift that brings a value into [2^30, 2^31).
module room_of (
    input wire clk,
    input wire [30:0] value,
    output reg [4:0] room  // three cycles later
);
    wire [5:0] place;
    wire unused = place[5];

    top_bit #(.WIDTH(31)) top (.clk(clk), .value(value), .place(place));
    always @(posedge clk) room <= 5'd30 - place[4:0];
endmodule
